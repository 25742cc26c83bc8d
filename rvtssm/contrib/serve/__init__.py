"""A web page on which recordings and cameras play with their boxes."""
