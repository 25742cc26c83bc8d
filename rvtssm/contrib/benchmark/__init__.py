"""Optional: the table of rates that a processor sustains; README.md says more."""
