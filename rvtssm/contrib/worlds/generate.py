"""`rvtssm generate` with open and rendered worlds beside the streets of the demo."""

import functools
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from rvtssm.contrib.demo.generate import generate as generate_simulated
from rvtssm.contrib.demo.generate_recordings import SYNTHETIC, Simulation, boxes_of
from rvtssm.contrib.worlds.evidence import Drawn, recording_of
from rvtssm.contrib.worlds.rendered.assets import digest, read_assets
from rvtssm.contrib.worlds.rendered.rendered_world import RENDERED_WORLD, rendered_recording
from rvtssm.contrib.worlds.rules import SPEC
from rvtssm.contrib.worlds.world_building import build_world
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, WorldsConfig
from rvtssm.events.labels import Boxes
from rvtssm.records import Events

_MOST_WORLDS = 20  # most worlds that are drawn for a recording until one has labels


def generate(config: WorldsConfig, only: Collection[str] | None = None) -> None:
    """Write the recordings of a simulated dataset to `dataset.raw_dir`: all, or those that `only` names."""
    rendered = RENDERED_WORLD
    if config.dataset.name == rendered.spec.name:
        # Models that are missing or damaged are found before anything is written.
        found = digest(config.synthetic.assets_folder)
        read_assets(config.synthetic.assets_folder, found)
        draw = functools.partial(rendered_recording, assets_sha256=found)
        rendered = replace(rendered, facts={"assets_sha256": found}, draw=draw)
    generate_simulated(config, only, (*SIMULATIONS, rendered))


def open_world_recording(
    config: OpenWorldConfig, split: str, index: int, sensor_hw: tuple[int, int] = SPEC.sensor_hw
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording by `recording_of`.

    A box contains the whole object exactly at its time, clipped to the frame.
    """
    is_moving = config.is_ego_moving(index)
    everyone = config.world.empty() if config.is_empty(split, index) else config.world

    def draw(rng: np.random.Generator) -> Drawn:
        is_plain = split == "train" and everyone.plain_share and rng.random() < everyone.plain_share
        world = everyone.plain() if is_plain else everyone
        scene = build_world(*sensor_hw, config.duration_us, world, rng, is_moving)
        return Drawn(scene.height, scene.width, scene.frames(), lambda: boxes_of(scene, config, SPEC))

    return recording_of(draw, config, split, index, sensor_hw, _MOST_WORLDS)


OPEN_WORLD = Simulation(SPEC, recipe=6, draw=open_world_recording, unread=("scene", "assets", "scenes"))
SIMULATIONS = (replace(SYNTHETIC, unread=("world", "assets", "scenes")), OPEN_WORLD)
