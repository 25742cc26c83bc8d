"""The picture of `docs/simulation.md`: a rendered frame with its boxes, its events, and a real recording."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

import rvtssm
from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.simulation_config import CAMERAS
from rvtssm.contrib.worlds.rendered.assets import read_assets
from rvtssm.contrib.worlds.rendered.scene_building import build_scene
from rvtssm.contrib.worlds.rendered.scene_kinds import CAR, KINDS
from rvtssm.contrib.worlds.worlds_config import WorldConfig
from rvtssm.drawing import write_png
from rvtssm.events.labels import Boxes
from rvtssm.records import Events

KIND, SEED = "following", 8
SENSOR = "gen1"
HEIGHT, WIDTH = 240, 304
MOMENT_US = 400_000
WINDOW_US = 40_000
PANEL = (456, 360)  # width and height in pixels
GAP = 8
COLOURS = ((220, 40, 40), (0, 150, 0), (240, 170, 0))  # person, vehicle, two-wheeler
BRIGHTER, DARKER = (30, 110, 200), (220, 60, 60)


def write_picture(assets: str, real: Path, out: Path) -> None:
    """Write three panels beside each other.

    Args:
        assets: The folder of models.
        real: A real recording whose licence allows to show it; its first 40 ms are drawn.
        out: The PNG.
    """
    world = WorldConfig(min_lines=HEIGHT, max_lines=HEIGHT, lens_blur=0.5)
    rng = np.random.default_rng(SEED)
    duration_us = MOMENT_US + 100_000  # the seed is that of a scene of half a second
    scene = build_scene(read_assets(assets), KINDS[KIND], CAR, (HEIGHT, WIDTH), duration_us, world, rng)
    frames = list(scene.frames([MOMENT_US], 3, 8))
    frame = next(image for t_us, image in frames if t_us == MOMENT_US)
    camera = drawn_camera(CAMERAS[SENSOR], rng)
    blocks = [block.between(MOMENT_US - WINDOW_US, MOMENT_US) for block in simulate_events(frames, camera, rng)]
    recording = rvtssm.open(real)
    events = recording.read()
    first = events.between(int(events.t[0]), int(events.t[0]) + WINDOW_US)
    panels = [
        _panel(_with_boxes(frame, scene.boxes)),
        _panel(_drawn(blocks, HEIGHT, WIDTH)),
        _panel(_drawn([first], recording.height, recording.width)),
    ]
    gap = np.full((PANEL[1], GAP, 3), 255, np.uint8)
    write_png(out, np.hstack([panels[0], gap, panels[1], gap, panels[2]]))


def _with_boxes(frame: np.ndarray, boxes: Boxes) -> np.ndarray:
    coded = (np.clip(frame, 0, 1) ** (1 / 2.2) * 255).astype(np.uint8)
    picture = np.repeat(cv2.resize(coded, PANEL)[..., None], 3, axis=2)
    scale = PANEL[0] / frame.shape[1]
    for box in boxes:
        left, top = round(float(box["x"]) * scale), round(float(box["y"]) * scale)
        right, bottom = round(float(box["x"] + box["w"]) * scale), round(float(box["y"] + box["h"]) * scale)
        cv2.rectangle(picture, (left, top), (right, bottom), COLOURS[box["class_id"]], 2)
    return picture


def _drawn(blocks: list[Events], height: int, width: int) -> np.ndarray:
    """Return events on white: brighter ones blue, darker ones red, the last one of a pixel counts."""
    picture = np.full((height, width, 3), 255, np.uint8)
    for events in blocks:
        picture[events.y, events.x] = np.where(events.p[:, None] > 0, BRIGHTER, DARKER)
    return picture


def _panel(picture: np.ndarray) -> np.ndarray:
    """Return a picture that fills a panel, with white below or beside it."""
    scale = min(PANEL[0] / picture.shape[1], PANEL[1] / picture.shape[0])
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    panel = np.full((PANEL[1], PANEL[0], 3), 255, np.uint8)
    panel[: size[1], : size[0]] = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    return panel
