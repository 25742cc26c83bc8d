"""Reproducible studies of speed and accuracy, each with its command and its table; not part of the package."""
