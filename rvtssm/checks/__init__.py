"""Recordings and datasets are described, and checked for faults."""
