"""The web page of `rvtssm serve`: a detector that plays recordings and cameras, at a rate that the viewer chooses."""
