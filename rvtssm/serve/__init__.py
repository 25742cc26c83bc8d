"""The web page of `rvtssm serve`: a detector on recordings and cameras, at a rate that the viewer chooses."""
