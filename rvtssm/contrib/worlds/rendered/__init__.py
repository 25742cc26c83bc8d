"""Worlds from 3D models: a reader of GLB, a rasteriser, streets with traffic and people, and recordings of them."""
