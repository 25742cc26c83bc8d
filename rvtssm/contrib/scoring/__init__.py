"""Optional: boxes that other programs found, scored as `rvtssm evaluate` scores its own; README.md says more."""
