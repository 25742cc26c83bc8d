"""`rvtssm label`: a detector makes boxes for recordings, or times of recordings, that have none."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.cli.chosen_weights import read_weights, weights_file, with_chosen_precision
from rvtssm.cli.console import announce, say, say_error
from rvtssm.cli.inputs import recordings_path, writable
from rvtssm.contrib.labeling.label_config import LabelSettings
from rvtssm.contrib.labeling.pseudo_labels import find_pseudo_boxes, label_every
from rvtssm.datasets import build_spec, custom, with_training
from rvtssm.datasets.tree import RawRecording, find_recordings, has_split
from rvtssm.evaluation.detector_run import WeightsFile, detector_processes, num_processes, read_once
from rvtssm.events.labels import BOX_DTYPE, Boxes, write_boxes
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.streams import check_causal
from rvtssm.models.weight_files import local_weights
from rvtssm.readers import open_with
from rvtssm.records import DatasetSpec
from rvtssm.system.extras import check_extra
from rvtssm.system.output_folder import claim, locked
from rvtssm.system.user_error import UserError, in_one_line
from rvtssm.system.workers import SameProcess, Workers, finished, progress_bar

_SETTINGS_FILE = "label.json"
_SPLITS = ("train", "val", "test")
_BOXES_SUFFIX = "_bbox.npy"  # where the dataset has label files of another kind, which cannot hold a `pseudo_score`


def label(config: LabelSettings) -> int:
    """Write a tree of recordings with labels to `out`; return 2 if one of the recordings cannot be read.

    The recordings are links to those of `dataset.raw_dir`. Annotated boxes stay as they are, boxes of the detector have
    a `pseudo_score`. Recordings that have their labels from an earlier run with the same settings are skipped.
    """
    raw_dir = Path(recordings_path(config))
    out = writable(Path(config.out or "outputs/label"))
    if out.resolve() == raw_dir.resolve():
        raise UserError("setting.conflict", name="out", found=out, needed="another folder than that of the recordings")
    check_extra("rvtssm label", "tracks", "trackers")
    config = replace(config, precision=with_chosen_precision(config).precision)
    checkpoint = read_weights(config)
    check_causal(checkpoint.detector)
    spec = _check_dataset(config, checkpoint)
    checkpoint = replace(checkpoint, spec=spec)  # ids of classes in files, and the usual interval, may be others
    label_every(checkpoint, config.label)
    recordings = _recordings(config, raw_dir, spec)
    announce(
        "label",
        weights=config.checkpoint,
        source=f"{raw_dir} {spec.name}",
        recordings=sum(split in config.label.splits for split, _ in recordings),
        device=checkpoint.detector.device,
        precision=config.precision,
        output=out,
    )
    num_failed, made = 0, []
    number = num_processes(config.label.workers)
    if number == 1:
        workers: Workers = SameProcess()
        write: Callable[..., Boxes | None] = partial(_write, checkpoint)
    else:
        workers = detector_processes(number)
        write = partial(_write_elsewhere, weights_file(config))
    tasks = iter([(raw.name, write, (out, raw_dir, split, raw, spec, config)) for split, raw in recordings])
    with locked(out), closing(workers), progress_bar("labelling", len(recordings)) as advance:
        _check_settings(out, config)
        custom.copy_descriptions(raw_dir, out, spec, labels=_suffix(spec))
        for done in finished(workers, lambda: next(tasks, None)):
            if isinstance(done.error, (UserError, OSError)):
                num_failed += 1
                say_error(f"{done.key}: {in_one_line(done.error)}")
            elif done.error is not None:
                raise done.error
            elif done.result is not None:
                made.append(done.result)
            advance(1)
    score = np.concatenate([np.zeros(0, BOX_DTYPE), *made])["pseudo_score"]
    say(
        f"{len(made)} recordings labelled with {(score > 0).sum()} boxes and {(score < 0).sum()} uncertain ones beside "
        f"{(score == 0).sum()} annotated ones, {num_failed} failed; train with dataset.raw_dir={out}"
    )
    return 2 if num_failed else 0


def _recordings(config: LabelSettings, raw_dir: Path, spec: DatasetSpec) -> list[tuple[str, RawRecording]]:
    """Return the recordings of all splits with the name of their split: those to label, and those that are linked."""
    splits = [split for split in _SPLITS if split in config.label.splits or has_split(raw_dir, split, spec)]
    splits += [split for split in config.label.splits if split not in _SPLITS]
    recordings = []
    for split in splits:
        recordings += [(split, raw) for raw in find_recordings(raw_dir, split, spec)]
    return recordings


def _write_elsewhere(weights: WeightsFile, *recording: Any) -> Boxes | None:
    """Do what `_write` does in a process that may have no weights yet."""
    *_, spec, _ = recording
    return _write(replace(read_once(weights), spec=spec), *recording)


def _write(
    checkpoint: LoadedCheckpoint,
    out: Path,
    raw_dir: Path,
    split: str,
    raw: RawRecording,
    spec: DatasetSpec,
    config: LabelSettings,
) -> Boxes | None:
    """Write the link and the labels of one recording, in this order; return the boxes, None if they were there."""
    link = out / raw.events_path.relative_to(raw_dir)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(raw.events_path.resolve())
    folder = raw.events_path.relative_to(raw_dir / (spec.events_dir or "")).parts[0]
    path = out / (spec.boxes_dir or "") / folder / f"{raw.name}{_suffix(spec)}"
    if path.exists():
        return None
    boxes = np.zeros(0, BOX_DTYPE) if raw.boxes_path is None else raw.read_boxes(spec)
    if split in config.label.splits:
        with closing(open_with(raw.events_path, spec.read_options)) as recording:
            new = find_pseudo_boxes(checkpoint, recording, np.unique(boxes["t"]), config.label)
        if len(boxes):  # tracks of the detector are others than those of the annotations
            new["track_id"][new["track_id"] > 0] += boxes["track_id"].max()
        boxes = np.concatenate([boxes, new])
        boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    elif raw.boxes_path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_boxes(path, boxes)
    return boxes if split in config.label.splits else None


def _suffix(spec: DatasetSpec) -> str:
    """Return how the label files end that are written."""
    return spec.boxes_suffix if spec.boxes_suffix.endswith(".npy") else _BOXES_SUFFIX


def _check_dataset(config: LabelSettings, checkpoint: LoadedCheckpoint) -> DatasetSpec:
    """Return the spec of the dataset. Raise ValueError if its classes or its sensor are not those of the weights."""
    known = checkpoint.spec
    spec = build_spec(with_training(config.dataset, known))
    asked, trained = _classes_and_size(spec), _classes_and_size(known)
    if asked != trained:
        raise UserError(
            "file.content", name=config.checkpoint,
            found=f"weights for {known.name} ({trained}), and {spec.name} has {asked}",
            advice="label the dataset of the weights",
        )  # fmt: skip
    return spec


def _classes_and_size(spec: DatasetSpec) -> str:
    return f"{', '.join(spec.class_names)}; {spec.width} x {spec.height} pixels, {spec.downsample} to one"


def _check_settings(out: Path, config: LabelSettings) -> None:
    """Write what decides the labels into an empty folder, or compare it with that of an earlier run."""
    settings: dict[str, Any] = {
        "weights_file": hashlib.sha256(Path(local_weights(str(config.checkpoint))).read_bytes()).hexdigest(),
        "raw_dir": str(Path(str(config.dataset.raw_dir)).resolve()),
        "precision": config.precision,
        **{key: value for key, value in asdict(config.label).items() if key != "workers"},
    }
    is_used = any(not file.name.startswith(".") for file in out.iterdir())
    claim(out / _SETTINGS_FILE, settings, is_used)
