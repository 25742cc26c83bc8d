"""One step of a detector as a file for other programs, and reading such files."""
