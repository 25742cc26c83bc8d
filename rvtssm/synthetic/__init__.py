"""The street of the demo, its camera in software, and `generate`."""
