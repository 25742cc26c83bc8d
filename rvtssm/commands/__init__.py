"""The command line: one file per verb, which ties the rooms together, and the composition of settings by Hydra."""
