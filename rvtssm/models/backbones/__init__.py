"""Backbones, their stages, and what mixes features within a frame."""
