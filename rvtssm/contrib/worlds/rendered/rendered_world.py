"""rendered_world: recordings of streets and squares that are rendered from 3D models, made with `rvtssm generate`.

The classes are those of `open_world`. The models are not part of the package: `assets=DIR` names their folder.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.generate_recordings import Simulation, random_generators
from rvtssm.contrib.worlds.evidence import labelled
from rvtssm.contrib.worlds.rendered.assets import read_assets
from rvtssm.contrib.worlds.rendered.scene_building import build_scene, drawn_kind
from rvtssm.contrib.worlds.rendered.scene_kinds import EMPTY, REST
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig
from rvtssm.datasets import DATASETS
from rvtssm.events.labels import Boxes
from rvtssm.records import Events

SPEC = DATASETS["rendered_world"]
_MOST_SCENES = 5


def rendered_recording(
    config: OpenWorldConfig, split: str, index: int, sensor_hw: tuple[int, int] = SPEC.sensor_hw
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording, which depend only on settings, models, split, index and sensor.

    A scene without any label is drawn again, up to _MOST_SCENES times, unless it is to be empty.

    Args:
        config: What to generate; `config.assets` is the folder of the models.
        split: `train`, `val` or `test`.
        index: Number of the recording in its split.
        sensor_hw: Height and width of the sensor in pixels.

    Returns:
        The events, in blocks, and the boxes.
    """
    assets = read_assets(config.assets_folder)
    is_empty = split == "train" and config.is_empty(index)
    for attempt in range(_MOST_SCENES):
        scene_rng, camera_rng = random_generators(config, split, index, attempt)
        camera_moves = config.is_ego_moving(index)
        kind, manner = drawn_kind(config.scenes, camera_moves, scene_rng)
        if is_empty:
            kind = EMPTY
            manner = str(scene_rng.choice([each for each in EMPTY.cameras if (each != REST) == camera_moves]))
        scene = build_scene(assets, kind, manner, sensor_hw, config.duration_us, config.world, scene_rng)
        left = int(scene_rng.integers(sensor_hw[1] - scene.width + 1))
        top = int(scene_rng.integers(sensor_hw[0] - scene.height + 1))
        camera = drawn_camera(config.camera, camera_rng)
        sides = (SPEC.prepare_min_side_px, SPEC.prepare_min_diagonal_px)
        events = list(simulate_events(scene.frames(config.label_times_us, *sides), camera, camera_rng))
        boxes = labelled(scene.boxes, events, camera, config.label_times_us if split == "train" else ())
        if is_empty or (boxes["w"] > 0).any():
            break
    # The scene may fill only a part of the frame.
    boxes["x"] += left
    boxes["y"] += top
    shift = np.uint16(left), np.uint16(top)
    return (Events(block.t, block.x + shift[0], block.y + shift[1], block.p) for block in events), boxes


RENDERED_WORLD = Simulation(SPEC, recipe=1, draw=rendered_recording, unread=("scene", "assets"))
