"""Simulated recordings with exact boxes: procedural traffic seen by an event camera in software. No import of torch."""
