"""`rvtssm generate` with open and rendered worlds beside the streets of the demo."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.generate import generate as generate_simulated
from rvtssm.contrib.demo.generate_recordings import SYNTHETIC, Simulation, boxes_of, random_generators
from rvtssm.contrib.worlds.evidence import labelled
from rvtssm.contrib.worlds.rendered.assets import digest, read_assets
from rvtssm.contrib.worlds.rendered.rendered_world import RENDERED_WORLD
from rvtssm.contrib.worlds.world_building import build_world
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, WorldsConfig
from rvtssm.datasets import DATASETS
from rvtssm.events.labels import Boxes
from rvtssm.records import Events

SPEC = DATASETS["open_world"]
_MOST_WORLDS = 20  # most worlds that are drawn for a recording until one has labels


def generate(config: WorldsConfig, only: Collection[str] | None = None) -> None:
    """Write the recordings of a simulated dataset to `dataset.raw_dir`: all, or those that `only` names."""
    rendered = RENDERED_WORLD
    if config.dataset.name == rendered.spec.name:
        # Models that are missing or damaged are found before anything is written.
        read_assets(config.synthetic.assets_folder)
        rendered = replace(rendered, facts={"assets_sha256": digest(config.synthetic.assets_folder)})
    generate_simulated(config, only, (*SIMULATIONS, rendered))


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
    boxes = labelled(boxes, events, camera, config.label_times_us if split == "train" else ())
    boxes["x"] += left
    boxes["y"] += top
    moved = (Events(block.t, block.x + np.uint16(left), block.y + np.uint16(top), block.p) for block in events)
    return moved, boxes


OPEN_WORLD = Simulation(SPEC, recipe=6, draw=open_world_recording, unread=("scene", "assets", "scenes"))
SIMULATIONS = (replace(SYNTHETIC, unread=("world", "assets", "scenes")), OPEN_WORLD)
