"""Sequence benchmarks with published numbers: the temporal layers alone, on data that a command simulates."""
