"""The command line: one file per verb, and the composition of settings."""
