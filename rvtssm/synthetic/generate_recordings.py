"""Generates the simulated datasets in parallel: recordings with boxes."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rvtssm.contrib.worlds import open_world
from rvtssm.contrib.worlds.world import World
from rvtssm.contrib.worlds.world_building import build_world
from rvtssm.datasets import synthetic
from rvtssm.datasets.synthetic import GENERATED_FILE
from rvtssm.events.labels import BOX_DTYPE, Boxes, nothing_at, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events
from rvtssm.synthetic.camera import drawn_camera, simulate_events
from rvtssm.synthetic.scene import Scene, build_scene
from rvtssm.synthetic.simulation_config import CameraConfig, SyntheticConfig
from rvtssm.system.atomic_files import atomic_file, remove_abandoned
from rvtssm.system.file_errors import CONTENT_ERRORS, file_errors
from rvtssm.system.progress import run_all
from rvtssm.system.user_error import UserError

SPLITS = ("train", "val", "test")
RECIPES = {"synthetic": 1, "open_world": 6}  # increase a number if the same settings give other recordings than before
_SEEN_US = 50_000  # time span whose events must show an object
_SEEN_PER_PX = 0.02  # events per pixel of its box that show an object
_MOST_WORLDS = 20  # most worlds that are drawn for a recording of open_world until one has labels
SIMULATED = {"synthetic": synthetic.SPEC, "open_world": open_world.SPEC}


def generate_dataset(
    config: SyntheticConfig,
    raw_dir: Path | str,
    dataset: str = "synthetic",
    progress: bool = True,
    only: Collection[str] | None = None,
) -> list[str]:
    """Write `raw_dir/{train,val,test}/<name>_td.dat` and `<name>_bbox.npy`, in parallel over recordings.

    Complete recordings are skipped.

    Args:
        config: What to generate.
        raw_dir: The folder.
        dataset: One of SIMULATED.
        progress: Whether to show the progress.
        only: The recordings to write, as `split/name`; None means all.

    Returns:
        The names of the recordings that were written.

    Raises:
        UserError: The folder holds recordings of other settings, or a worker process was killed.
    """
    config.check()
    raw_dir = Path(raw_dir)
    _check_folder(raw_dir, config, dataset)
    remove_abandoned(raw_dir)
    written, tasks = [], []
    for split in SPLITS:
        (raw_dir / split).mkdir(exist_ok=True)
        for index in range(config.num_recordings(split)):
            key = f"{split}/{_name(split, index)}"
            is_complete = _boxes_path(raw_dir, split, index, dataset).exists()  # boxes are written last
            if not is_complete and (only is None or key in only):
                tasks.append((key, _write, (config, raw_dir, split, index, dataset)))
    try:
        for done in run_all(tasks, config.workers, "generating" if progress else None):
            if done.error is not None:
                raise done.error
            written.append(done.key)
    finally:
        remove_abandoned(raw_dir)  # files of workers that were killed
    return sorted(written)


def simulated_recording(
    config: SyntheticConfig, split: str, index: int, dataset: str = "synthetic"
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and the boxes of one recording, which depend only on settings, split and index.

    A box contains the whole object exactly at its time, clipped to the frame. The first label is at 100 ms or just
    after. A world without any label is drawn again, up to _MOST_WORLDS times, unless it is to be empty. In training,
    label times of open_world without a box have an entry that says so (`nothing_at`).

    Args:
        config: What to generate.
        split: `train`, `val` or `test`.
        index: Number of the recording in its split.
        dataset: One of SIMULATED.

    Returns:
        The events, in blocks, and the boxes.
    """
    is_moving, config = config.is_ego_moving(index), config.of_recording(index)
    is_empty = split == "train" and dataset == open_world.SPEC.name and config.is_empty(index)
    if is_empty:
        config = replace(config, world=config.world.empty())
    for attempt in range(_MOST_WORLDS):
        blocks, boxes = _drawn(config, dataset, is_moving=is_moving, seed=(split, index, attempt))
        if is_empty or (boxes["w"] > 0).any() or dataset != open_world.SPEC.name:
            break
    return blocks, boxes


def _drawn(
    config: SyntheticConfig, dataset: str, *, is_moving: bool, seed: tuple[str, int, int]
) -> tuple[Iterable[Events], Boxes]:
    """Return the events and boxes of one scene. The seed is a split, an index and the number of the attempt."""
    split, index, attempt = seed
    words = (config.seed, SPLITS.index(split), index, *([attempt] if attempt else []))
    scene_rng, camera_rng = (np.random.default_rng(each) for each in np.random.SeedSequence(words).spawn(2))
    spec, size, duration_us = SIMULATED[dataset], (config.height, config.width), round(config.duration_s * 1e6)
    left = top = 0  # where a sensor begins that fills only a part of the frame
    scene: Scene | World
    if spec is synthetic.SPEC:
        scene = build_scene(*size, duration_us, config.scene, scene_rng, is_moving)
    else:
        is_plain = split == "train" and config.world.plain_share and scene_rng.random() < config.world.plain_share
        world = config.world.plain() if is_plain else config.world
        scene = build_world(*size, duration_us, world, scene_rng, is_moving)
        left, top = (int(scene_rng.integers(f - s + 1)) for f, s in ((size[1], scene.width), (size[0], scene.height)))
    times_us = range(config.first_label_us, duration_us + 1, config.label_interval_us)
    found = np.concatenate(
        [scene.boxes(t_us, spec.prepare_min_side_px, spec.prepare_min_diagonal_px) for t_us in times_us]
    )
    boxes = np.zeros(len(found), BOX_DTYPE)  # zeros also between fields, so that equal boxes give equal files
    for name in BOX_DTYPE.names or ():
        boxes[name] = found[name]
    camera = drawn_camera(config.camera, camera_rng)
    blocks = simulate_events(scene.frames(), camera, camera_rng)
    if spec is synthetic.SPEC:
        return blocks, boxes
    events = list(blocks)
    boxes = with_events(boxes, events, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    boxes["x"] += left
    boxes["y"] += top
    if split == "train":
        boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(times_us, boxes["t"]))])
        boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    moved = (Events(each.t, each.x + np.uint16(left), each.y + np.uint16(top), each.p) for each in events)
    return moved, boxes


def with_events(boxes: Boxes, blocks: list[Events], noise_rate_hz: float) -> Boxes:
    """Return the boxes of every track from the first one that contains clearly more events than noise.

    Objects that are too dark, or that have not moved yet, cannot be detected, so they get no label.

    Args:
        boxes: The boxes.
        blocks: The events. For each box, the last 50 ms count.
        noise_rate_hz: Noise events per pixel and second.
    """
    t = np.concatenate([events.t for events in blocks])
    x, y = (np.concatenate([getattr(events, name) for events in blocks]) for name in "xy")
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


def _check_folder(raw_dir: Path, config: SyntheticConfig, dataset: str) -> None:
    """Write the settings into a new folder, or compare them with the settings of an existing folder.

    A setting that an existing folder does not mention is newer than the folder, so it had its default value.
    """
    settings = {"recipe": RECIPES[dataset], "dataset": dataset, **asdict(config)}
    for unread in ("workers", "world" if dataset == "synthetic" else "scene"):
        del settings[unread]
    path = raw_dir / GENERATED_FILE
    if path.exists():
        with file_errors(path, advice="generate into another folder", errors=CONTENT_ERRORS):
            found = {"dataset": "synthetic", **json.loads(path.read_text())}
            found["camera"] = {**asdict(CameraConfig()), **found.get("camera", {})}
        if different := [key for key in {**found, **settings} if found.get(key) != settings.get(key)]:
            listed = ", ".join(f"{key}={found.get(key)} instead of {settings.get(key)}" for key in different)
            raise UserError(f"{raw_dir} was generated with {listed}; delete it or generate into another folder")
    elif any((raw_dir / split).exists() for split in SPLITS):
        raise UserError(f"{raw_dir} holds recordings but no {GENERATED_FILE}; generate into another folder")
    else:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(settings, indent=2) + "\n")


def _write(config: SyntheticConfig, raw_dir: Path, split: str, index: int, dataset: str) -> None:
    events, boxes = simulated_recording(config, split, index, dataset)
    path = raw_dir / split / f"{_name(split, index)}{SIMULATED[dataset].event_suffixes[0]}"
    size = config.of_recording(index)
    write_dat(path, events, size.height, size.width)
    write_boxes(_boxes_path(raw_dir, split, index, dataset), boxes)


def _name(split: str, index: int) -> str:
    return f"{split}_{index:04d}"


def _boxes_path(raw_dir: Path, split: str, index: int, dataset: str) -> Path:
    return raw_dir / split / f"{_name(split, index)}{SIMULATED[dataset].boxes_suffix}"
