"""rendered_world: recordings of streets and squares that are rendered from 3D models, made with `rvtssm generate`.

The classes are those of `open_world`. The models are not part of the package: `assets=DIR` names their folder.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rvtssm.contrib.demo.generate_recordings import Simulation
from rvtssm.contrib.worlds.evidence import Drawn, recording_of
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
    config: OpenWorldConfig,
    split: str,
    index: int,
    sensor_hw: tuple[int, int] = SPEC.sensor_hw,
    assets_sha256: str | None = None,
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording by `recording_of`.

    `config.assets` names the models, and `assets_sha256` is what `digest` must say of them; None accepts any.
    """
    assets = read_assets(config.assets_folder, assets_sha256)
    camera_moves = config.is_ego_moving(index)

    def draw(rng: np.random.Generator) -> Drawn:
        kind, manner = drawn_kind(config.scenes, camera_moves, rng)
        if config.is_empty(split, index):
            kind = EMPTY
            manner = str(rng.choice([each for each in EMPTY.cameras if (each != REST) == camera_moves]))
        scene = build_scene(assets, kind, manner, sensor_hw, config.duration_us, config.world, rng)
        sides = (SPEC.prepare_min_side_px, SPEC.prepare_min_diagonal_px)
        return Drawn(scene.height, scene.width, scene.frames(config.label_times_us, *sides), lambda: scene.boxes)

    return recording_of(draw, config, split, index, sensor_hw, _MOST_SCENES)


RENDERED_WORLD = Simulation(SPEC, recipe=4, draw=rendered_recording, unread=("scene", "assets"))
