"""Rendered worlds: how fast they are drawn, and how far their events are from those of real sensors."""
