"""Datasets in object stores: files are listed, read in parts into a bounded local cache, and uploaded."""
