"""`rvtssm generate` with open worlds beside the streets of the demo."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.generate import generate as generate_simulated
from rvtssm.contrib.demo.generate_recordings import SYNTHETIC, Simulation, boxes_of, random_generators
from rvtssm.contrib.worlds.world_building import build_world
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, WorldsConfig
from rvtssm.datasets import DATASETS
from rvtssm.events.labels import Boxes, nothing_at
from rvtssm.records import Events

SPEC = DATASETS["open_world"]

_SEEN_US = 50_000  # time span whose events must show an object
_SEEN_PER_PX = 0.02  # events per pixel of its box that show an object
_MOST_WORLDS = 20  # most worlds that are drawn for a recording until one has labels


def generate(config: WorldsConfig, only: Collection[str] | None = None) -> None:
    """Write the recordings of dataset=open_world or synthetic to `dataset.raw_dir`: all, or those that `only` names."""
    generate_simulated(config, only, SIMULATIONS)


def open_world_recording(
    config: OpenWorldConfig, split: str, index: int, sensor_hw: tuple[int, int] = SPEC.sensor_hw
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording, which depend only on settings, split, index and sensor.

    A box contains the whole object exactly at its time, clipped to the frame. A world without any label is drawn again,
    up to _MOST_WORLDS times, unless it is to be empty. In training, label times without a box have an entry that says
    so (`nothing_at`).

    Args:
        config: What to generate.
        split: `train`, `val` or `test`.
        index: Number of the recording in its split.
        sensor_hw: Height and width of the sensor in pixels.

    Returns:
        The events, in blocks, and the boxes.
    """
    is_moving = config.is_ego_moving(index)
    is_empty = split == "train" and config.is_empty(index)
    if is_empty:
        config = replace(config, world=config.world.empty())
    for attempt in range(_MOST_WORLDS):
        blocks, boxes = _drawn(config, split, sensor_hw, random_generators(config, split, index, attempt), is_moving)
        if is_empty or (boxes["w"] > 0).any():
            break
    return blocks, boxes


def _drawn(
    config: OpenWorldConfig,
    split: str,
    sensor_hw: tuple[int, int],
    generators: list[np.random.Generator],
    is_moving: bool,
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and boxes of one world, whose sensor may fill only a part of the frame."""
    scene_rng, camera_rng = generators
    is_plain = split == "train" and config.world.plain_share and scene_rng.random() < config.world.plain_share
    world = config.world.plain() if is_plain else config.world
    scene = build_world(*sensor_hw, config.duration_us, world, scene_rng, is_moving)
    left = int(scene_rng.integers(sensor_hw[1] - scene.width + 1))
    top = int(scene_rng.integers(sensor_hw[0] - scene.height + 1))
    boxes, camera = boxes_of(scene, config, SPEC), drawn_camera(config.camera, camera_rng)
    events = list(simulate_events(scene.frames(), camera, camera_rng))
    boxes = with_events(boxes, events, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    boxes["x"] += left
    boxes["y"] += top
    if split == "train":
        boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(config.label_times_us, boxes["t"]))])
        boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    moved = (Events(block.t, block.x + np.uint16(left), block.y + np.uint16(top), block.p) for block in events)
    return moved, boxes


OPEN_WORLD = Simulation(SPEC, recipe=6, draw=open_world_recording, unread=("scene",))
SIMULATIONS = (replace(SYNTHETIC, unread=("world",)), OPEN_WORLD)


def with_events(boxes: Boxes, blocks: list[Events], noise_rate_hz: float) -> Boxes:
    """Return the boxes of every track from the first one that contains clearly more events than noise.

    Objects that are too dark, or that have not moved yet, cannot be detected, so they get no label.

    Args:
        boxes: The boxes.
        blocks: The events. For each box, the last 50 ms count.
        noise_rate_hz: Noise events per pixel and second.
    """
    t = np.concatenate([events.t for events in blocks])
    x = np.concatenate([events.x for events in blocks])
    y = np.concatenate([events.y for events in blocks])
    keep, seen = np.zeros(len(boxes), np.bool_), set()
    for i in np.argsort(boxes["t"], kind="stable"):
        box = boxes[i]
        if box["track_id"] not in seen:
            start, end = np.searchsorted(t, (box["t"] - _SEEN_US, box["t"]))
            inside = (x[start:end] >= box["x"]) & (x[start:end] < box["x"] + box["w"])
            inside &= (y[start:end] >= box["y"]) & (y[start:end] < box["y"] + box["h"])
            area = float(box["w"] * box["h"])
            noise = noise_rate_hz * area * _SEEN_US * 1e-6
            if np.count_nonzero(inside) < 2 * noise + 4 * noise**0.5 + _SEEN_PER_PX * area + 5:
                continue
            seen.add(box["track_id"])
        keep[i] = True
    return boxes[keep]
