"""What stands beside the core: every folder is optional, and nothing outside of this folder imports from it."""
