"""The light of a rendered scene, and what a windscreen mirrors, drawn at random."""

from __future__ import annotations

import math

import numpy as np

from rvtssm.contrib.worlds.rendered.assets import Assets
from rvtssm.contrib.worlds.rendered.raster import SRGB, Light
from rvtssm.contrib.worlds.rules import log_uniform


def drawn_light(assets: Assets, is_dusk: bool, rng: np.random.Generator) -> Light:
    """Return an overcast sky with contact shadows, a sun from any side, or dusk."""
    skies = assets.textures["sky"]
    picture = skies[rng.integers(len(skies))][0]
    upper = SRGB[picture[: max(2, picture.shape[0] // 2 - 6)]]
    upper = np.roll(upper, int(rng.integers(upper.shape[1])), axis=1)
    angle, high = rng.uniform(0, 2 * math.pi), math.radians(rng.uniform(15, 60))
    sun = np.array([math.sin(angle) * math.cos(high), math.sin(high), math.cos(angle) * math.cos(high)])
    if is_dusk:
        sky = 0.5 + 0.3 * upper
        brightness = log_uniform(0.03, 0.25, rng)
        return Light(sun, 0.0, 0.5, 0.32, 0.4, 0.0, brightness, sky.astype(np.float32))
    brightness = rng.uniform(0.6, 1.0)
    if rng.random() < 0.55:
        sky = np.full_like(upper, rng.uniform(0.7, 1.0)) + 0.1 * upper
        return Light(sun, 0.0, 0.5, 0.32, rng.uniform(0.4, 0.6), 0.0, brightness, sky.astype(np.float32))
    sky = 0.25 + 0.85 * upper
    return Light(sun, rng.uniform(0.5, 0.9), 0.32, 0.23, 0.18, 6.0, brightness, sky.astype(np.float32))


def drawn_veil(height: int, width: int, is_dusk: bool, rng: np.random.Generator) -> np.ndarray:
    """Return what a windscreen mirrors: a dashboard, mostly in the lower part of the picture."""
    coarse = rng.uniform(0, 1, (6, 8))
    rows = np.linspace(0, 5, height)
    columns = np.linspace(0, 7, width)
    across = np.array([np.interp(columns, np.arange(8), row) for row in coarse])
    smooth = np.array([np.interp(rows, np.arange(6), column) for column in across.T]).T
    falling = np.linspace(0.3, 1.0, height)[:, None]
    brightness = 0.15 if is_dusk else 1.0
    return (rng.uniform(0.0, 0.12) * brightness * smooth * falling).astype(np.float32)
