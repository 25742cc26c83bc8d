"""Generates the synthetic dataset in parallel: recordings of simulated traffic with boxes."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rvtssm.atomic_files import atomic_file, remove_abandoned
from rvtssm.datasets.synthetic import SPEC
from rvtssm.events.labels import BOX_DTYPE, Boxes, write_boxes
from rvtssm.events.readers.dat import write_dat
from rvtssm.progress import run_all
from rvtssm.records import Events
from rvtssm.simulation.camera import simulate_events
from rvtssm.simulation.scene import build_scene
from rvtssm.simulation.simulation_config import FIRST_LABEL_US, SyntheticConfig
from rvtssm.workers import WorkerDied

SPLITS = ("train", "val", "test")
RECIPE = 1  # raise it if a change makes the same settings give other recordings
_SETTINGS_FILE = "synthetic.json"


def generate_synthetic(config: SyntheticConfig, raw_dir: Path | str, progress: bool = True) -> list[str]:
    """Write `raw_dir/{train,val,test}/<name>_td.dat` and `<name>_bbox.npy`, in parallel over recordings.

    Complete recordings are skipped. Return the names `split/name` of the others. Raise ValueError if the folder holds
    recordings of other settings. If a worker process was killed, raise it after all other recordings are written.
    """
    config.check()
    raw_dir = Path(raw_dir)
    _check_folder(raw_dir, config)
    remove_abandoned(raw_dir)
    written, tasks = [], []
    for split in SPLITS:
        (raw_dir / split).mkdir(exist_ok=True)
        for index in range(config.num_recordings(split)):
            if not _boxes_path(raw_dir, split, index).exists():  # boxes are written last
                tasks.append((f"{split}/{_name(split, index)}", _write, (config, raw_dir, split, index)))
    failed = []
    try:
        for done in run_all(tasks, config.workers, "generating" if progress else None):
            if isinstance(done.error, WorkerDied):
                failed.append(f"{done.key}: {done.error}")
            elif done.error is not None:
                raise done.error
            else:
                written.append(done.key)
    finally:
        remove_abandoned(raw_dir)  # files of workers that were killed
    if failed:
        raise ValueError(f"{len(failed)} of {len(tasks)} recordings were not written; {'; '.join(sorted(failed))}")
    return sorted(written)


def synthetic_recording(config: SyntheticConfig, split: str, index: int) -> tuple[Iterable[Events], Boxes]:
    """Return the events, in blocks, and the boxes of one recording, which depend on settings, split and index only.

    A box contains the whole object at exactly its time, clipped to the frame. The first label is at 100 ms or just
    after.
    """
    duration_us = round(config.duration_s * 1e6)
    seeds = np.random.SeedSequence((config.seed, SPLITS.index(split), index)).spawn(2)
    scene_rng, camera_rng = (np.random.default_rng(seed) for seed in seeds)
    scene = build_scene(config.height, config.width, duration_us, config.scene, scene_rng, config.is_ego_moving(index))
    first_us = -(-FIRST_LABEL_US // config.label_interval_us) * config.label_interval_us
    found = np.concatenate(
        [
            scene.boxes(t_us, SPEC.prepare_min_side_px, SPEC.prepare_min_diagonal_px)
            for t_us in range(first_us, duration_us + 1, config.label_interval_us)
        ]
    )
    boxes = np.zeros(len(found), BOX_DTYPE)  # also clears the gaps between fields, so that equal boxes give equal files
    for name in BOX_DTYPE.names or ():
        boxes[name] = found[name]
    return simulate_events(scene.frames(), config.camera, camera_rng), boxes


def _check_folder(raw_dir: Path, config: SyntheticConfig) -> None:
    """Write the settings into a new folder, or compare them with those of an existing folder."""
    settings = {"recipe": RECIPE, **asdict(config)}
    del settings["workers"]
    path = raw_dir / _SETTINGS_FILE
    if path.exists():
        found = json.loads(path.read_text())
        if different := [key for key in {**found, **settings} if found.get(key) != settings.get(key)]:
            listed = ", ".join(f"{key}={found.get(key)} instead of {settings.get(key)}" for key in different)
            raise ValueError(f"{raw_dir} was generated with {listed}; delete it or generate into another folder")
    elif any((raw_dir / split).exists() for split in SPLITS):
        raise ValueError(f"{raw_dir} holds recordings but no {_SETTINGS_FILE}; generate into another folder")
    else:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(settings, indent=2) + "\n")


def _write(config: SyntheticConfig, raw_dir: Path, split: str, index: int) -> None:
    events, boxes = synthetic_recording(config, split, index)
    write_dat(raw_dir / split / f"{_name(split, index)}{SPEC.event_suffixes[0]}", events, config.height, config.width)
    write_boxes(_boxes_path(raw_dir, split, index), boxes)


def _name(split: str, index: int) -> str:
    return f"{split}_{index:04d}"


def _boxes_path(raw_dir: Path, split: str, index: int) -> Path:
    return raw_dir / split / f"{_name(split, index)}{SPEC.boxes_suffix}"
