"""Writes one step of a detector as a file for other programs, and reads such files."""
