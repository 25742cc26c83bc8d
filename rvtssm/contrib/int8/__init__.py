"""Optional: exported files whose products take 8 bits; README.md says more."""
