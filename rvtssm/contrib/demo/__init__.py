"""Optional: a street and its camera, with which `rvtssm demo` shows everything; README.md says more."""
