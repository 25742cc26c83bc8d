"""Recordings of drawn scenes, with labels of what their events show: what caused no events cannot be detected."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.generate_recordings import random_generators
from rvtssm.contrib.demo.simulation_config import CameraConfig
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig
from rvtssm.events.labels import Boxes, nothing_at
from rvtssm.records import Events

_SEEN_US = 50_000  # time span whose events must show an object
_SEEN_PER_PX = 0.02  # events per pixel of its box that show an object


class Drawn(NamedTuple):
    """A scene, which may fill only a part of the frame of its recording."""

    height: int
    width: int
    frames: Iterable[tuple[int, np.ndarray]]  # times in microseconds and intensities (H, W); read once
    boxes: Callable[[], Boxes]  # called when the frames are read


def recording_of(
    draw: Callable[[np.random.Generator], Drawn],
    config: OpenWorldConfig,
    split: str,
    index: int,
    sensor_hw: tuple[int, int],
    most_scenes: int,
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording, which depend only on settings, split, index and sensor.

    A scene without any label is drawn again, unless it is to be empty. In training, label times without a box have an
    entry that says so (`nothing_at`).

    Args:
        draw: Draws a scene.
        config: What to generate.
        split: `train`, `val` or `test`.
        index: Number of the recording in its split.
        sensor_hw: Height and width of the sensor in pixels.
        most_scenes: Most scenes that are drawn.
    """
    for attempt in range(most_scenes):
        scene_rng, camera_rng = random_generators(config, split, index, attempt)
        scene = draw(scene_rng)
        left = int(scene_rng.integers(sensor_hw[1] - scene.width + 1))
        top = int(scene_rng.integers(sensor_hw[0] - scene.height + 1))
        camera = drawn_camera(config.camera, camera_rng)
        events = list(simulate_events(scene.frames, camera, camera_rng))
        boxes = labelled(scene.boxes(), events, camera, config.label_times_us if split == "train" else ())
        if config.is_empty(split, index) or (boxes["w"] > 0).any():
            break
    # The place of the scene in the frame.
    boxes["x"] += left
    boxes["y"] += top
    moved = (Events(block.t, block.x + np.uint16(left), block.y + np.uint16(top), block.p) for block in events)
    return moved, boxes


def labelled(boxes: Boxes, blocks: list[Events], camera: CameraConfig, label_times_us: Collection[int]) -> Boxes:
    """Return the boxes of objects that the events show, and entries for the label times at which there is none.

    Args:
        boxes: The boxes.
        blocks: The events.
        camera: The camera, whose noise is not an object.
        label_times_us: In training, the label times; otherwise empty, and no entries are added.
    """
    boxes = with_events(boxes, blocks, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    if label_times_us:
        boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(np.array(label_times_us), boxes["t"]))])
        boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    return boxes


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
