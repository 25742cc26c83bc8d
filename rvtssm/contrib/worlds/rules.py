"""What painted worlds, rendered worlds and labelled videos share: classes, visible share, sensors, steps of time."""

import math
from typing import NamedTuple

import numpy as np

from rvtssm.contrib.worlds.worlds_config import WorldConfig
from rvtssm.datasets import DATASETS

SPEC = DATASETS["open_world"]
PERSON, VEHICLE, TWO_WHEELER = range(len(SPEC.class_names))
MIN_VISIBLE = 0.3  # share of an object from which on it has a box


class Sensor(NamedTuple):
    """Lines of a whole sensor, and the part of it that a frame shows, in pixels."""

    lines: int
    height: int
    width: int


def drawn_sensor(frame_hw: tuple[int, int], config: WorldConfig, rng: np.random.Generator) -> Sensor:
    """Return a sensor; one that is smaller than the frame fills a part of it."""
    lines = round(log_uniform(config.min_lines, config.max_lines, rng))
    height, width = frame_hw
    return Sensor(lines, min(lines, height), min(max(round(lines * width / height), 1), width))


def log_uniform(low: float, high: float, rng: np.random.Generator) -> float:
    """Return a number whose logarithm is uniform."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def step_us(speed_px_per_s: float, most_px: float, limits_us: tuple[int, int]) -> int:
    """Return the time to the next frame, in which nothing moves by more than `most_px` if the limits allow it."""
    return int(min(max(most_px / max(speed_px_per_s, 1e-3) * 1e6, limits_us[0]), limits_us[1]))
