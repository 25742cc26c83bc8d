"""Optional: recordings written in the formats of other programs; README.md says more."""
