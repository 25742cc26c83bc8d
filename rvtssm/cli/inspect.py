"""`rvtssm inspect PATH`: what a recording, a prepared file or a dataset contains, as text, picture and JSON."""

import glob
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rvtssm.checks import verify_dataset
from rvtssm.checks.inspect_dataset import (
    TreeInspection,
    inspect_prepared,
    inspect_raw,
    is_prepared,
    is_sequence,
    tree_figure,
)
from rvtssm.checks.inspect_recording import RecordingInspection, inspect_recording, recording_figure
from rvtssm.cli.config import Config
from rvtssm.cli.console import console, say, say_error
from rvtssm.cli.inputs import needed
from rvtssm.cli.inspect_output import print_tree, recording_table
from rvtssm.datasets import DATASETS, DatasetConfig, build_spec, with_described
from rvtssm.datasets.custom import FILE, options_above
from rvtssm.datasets.tree import find_event_files
from rvtssm.drawing import figure_png
from rvtssm.readers import index_of, open_recording, open_with, split_part
from rvtssm.readers.header import UNSAID_SIZE, UnknownSensorSize
from rvtssm.records import DatasetSpec, ReadOptions
from rvtssm.records.settings import SPLITS
from rvtssm.system.files import did_you_mean
from rvtssm.system.output_folder import result_set, write_files
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

_BY_SENSOR = ("gen1", "onempx")  # same names of files; the size in the files tells which


def inspect(config: Config, as_json: bool = False) -> int:
    """Describe `recording`; return 2 if a file of a dataset cannot be read.

    The dataset of a folder is recognised if the configuration does not name it. With `full`, the folder is read
    completely, and what is wrong in it is said in place of what it contains.

    A picture is written as well; with `as_json` only if `out` is given.
    """
    if config.full:
        return _inspect_fully(config, as_json)
    # What it is decides how it is read and shown.
    where = needed(config.recording, "rvtssm inspect PATH", "a recording, a prepared file or a folder of splits")
    path, topic = _existing(where)
    spec = _spec(config, path)
    inspection = _inspected(config, where, path, spec, as_json)
    if as_json:
        say(json.dumps(inspection.to_json(), indent=1))
    elif isinstance(inspection, RecordingInspection):
        console.print(recording_table(inspection))
    else:
        print_tree(inspection)
    # A program that reads JSON asks for pictures with `out`.
    if config.out or not as_json:
        name = f"{path.resolve().name}{(topic or '').replace('/', '_')}"
        files = _write_pictures(Path(config.out or "outputs/inspect"), name, inspection, path, spec)
        if not as_json:
            for file in files:
                say(f"picture: {file}")
    # Files of a dataset that cannot be read.
    errors = inspection.errors if isinstance(inspection, TreeInspection) else []
    for name, message in errors:
        say_error(f"{name}: {message}")
    return 2 if errors else 0


def _existing(where: str) -> tuple[Path, str | None]:
    """Return the path and the topic of what is to be described; raise UserError if it cannot be."""
    path, topic = split_part(local_path(where))
    if path.suffix in (".ckpt", ".safetensors", ".onnx", ".pt2"):
        raise UserError("file.kind", name=path, found="it is a checkpoint", advice=f"`rvtssm info {path}` describes it")
    if not path.exists():
        advice = did_you_mean(path).strip("; ") or "give a recording, a prepared file or a folder of splits"
        raise UserError("file.missing", name=path, found="it does not exist", advice=advice)
    return path, topic


def _inspected(
    config: Config, where: str, path: Path, spec: DatasetSpec | None, as_json: bool
) -> RecordingInspection | TreeInspection:
    is_folder = path.is_dir() and index_of(path) is None
    if is_folder and not is_prepared(path):
        if spec is None:
            raise unrecognised(path)
        return inspect_raw(path, spec)
    if is_folder or is_sequence(path):
        return inspect_prepared(path, spec)
    options = options_above(where, ReadOptions.of(spec or config.dataset))
    return inspect_recording(open_with(where, options), as_json, config.filters)


def _write_pictures(
    out: Path, name: str, inspection: RecordingInspection | TreeInspection, path: Path, spec: DatasetSpec | None
) -> list[Path]:
    """Write the picture of a recording or a dataset, and labelled frames of raw recordings; return the files."""
    pictures = {}
    if isinstance(inspection, RecordingInspection):
        pictures[f"{name}.png"] = figure_png(recording_figure(inspection))
    else:
        pictures[f"{name}.png"] = figure_png(tree_figure(inspection))
        if spec is not None and inspection.kind == "raw":
            from rvtssm.cli.inspect_output import labelled_frames  # imported here because torch takes a second

            for split, data in labelled_frames(path, spec, inspection.splits).items():
                pictures[f"{name}.labels_{split}.png"] = data
    escaped = glob.escape(name)
    with result_set(out, f"{name}.png", [f"{escaped}.png", f"{escaped}.labels_*.png"]) as staged:
        write_files(staged, pictures)
    return [out / file for file in pictures]


def _inspect_fully(config: Config, as_json: bool) -> int:
    """Read a raw or prepared dataset, or both and compare them; return 2 if anything is wrong."""
    dataset = config.dataset
    # A folder says which of the two it holds; settings may name both.
    if config.recording:
        path, _ = _existing(config.recording)
        if not path.is_dir():
            raise UserError(
                "file.kind", name=path, found="it is a file", advice="full=true reads the folder of a dataset; name one"
            )
        if is_prepared(path):
            dataset = replace(dataset, prepared_dir=str(path))
        else:
            dataset = with_recognised(dataset, path)
    if not dataset.raw_dir and not dataset.prepared_dir:
        needed = "rvtssm inspect DIR full=true needs the folder of a dataset, raw or prepared"
        raise UserError("setting.needs", name="full", found="true", needed=needed)
    # The same plan as in `preprocess`, compared with what is on disk.
    options = replace(config.preprocess, overwrite=False)
    spec = build_spec(dataset)
    windows = config.windows.settings
    verification = verify_dataset(spec, dataset.raw_dir, dataset.prepared_dir, windows, options)
    num_checked = verification.num_checked
    faults = verification.faults
    notes = verification.notes
    if as_json:
        say(json.dumps({"checked": num_checked, "faults": faults, "notes": notes}, indent=1))
    else:
        for name, message in faults:
            say_error(f"{name}: {message}")
        for name, message in notes:
            say(f"{name}: {message}", style="yellow")
        say(f"{num_checked} checked, {len(faults)} faults, {len(notes)} notes")
    return 2 if faults else 0


def _spec(config: Config, path: Path) -> DatasetSpec | None:
    dataset = config.dataset
    if path.is_dir():
        dataset = with_recognised(dataset, path)
    return build_spec(dataset) if dataset.name else None


def with_recognised(dataset: DatasetConfig, folder: Path) -> DatasetConfig:
    """Return the settings with a folder of recordings, and with the name of its dataset if that can be told.

    Args:
        dataset: The settings. A name and a sensor size that they give are kept.
        folder: The folder of the dataset.

    Raises:
        UserError: A file in the folder that describes or belongs to the dataset cannot be read.
    """
    dataset = with_described(replace(dataset, raw_dir=str(folder)))
    if dataset.name:
        return dataset
    if any((folder / "train").glob(f"*{DATASETS['dsec'].event_suffixes[0]}")):
        return replace(dataset, name="dsec")
    for name in _BY_SENSOR:
        spec = DATASETS[name]
        first = next((path for path in _recordings(folder) if path.name.endswith(spec.event_suffixes)), None)
        if first is not None and _sensor_hw(first) == (spec.height, spec.width):
            return replace(dataset, name=name)
    return dataset


def unrecognised(folder: Path) -> UserError:
    """Return the error for a folder whose dataset cannot be told: what it holds, and what to type."""
    if paths := _recordings(folder):
        sensor_hw = _sensor_hw(paths[0])
        size = f"which {UNSAID_SIZE}" if sensor_hw is None else f"{sensor_hw[1]} x {sensor_hw[0]} pixels"
        return UserError(
            "folder.no_dataset",
            name=folder,
            found=f"it has recordings in {', '.join(dict.fromkeys(f'{path.parent.name}/' for path in paths))} (in all "
            f"{len(paths)}, the first is {paths[0].name}, {size}), but nothing says which dataset they are",
            advice=f"type `rvtssm inspect {folder} dataset=NAME` with one of {', '.join(sorted(DATASETS))}, or "
            f"describe your own in {folder / FILE} (data_prep/README.md)",
        )
    # Recordings, but in no split.
    if paths := find_event_files(folder):
        return UserError(
            "folder.no_splits",
            name=folder,
            found=f"it has no train/, val/ or test/, but recordings (in all {len(paths)})",
            advice=f"inspect one of them, as in `rvtssm inspect {paths[0]}`, or the folder of a dataset, which has "
            "recordings in train/, val/ and test/",
        )
    # No recordings at all: name what is there instead.
    there = ", ".join(sorted(f"{path.name}{'/' * path.is_dir()}" for path in folder.iterdir())[:9]) or "nothing"
    found = f"it holds no recordings in train/, val/ or test/, but {there}"
    advice = "give a recording, a prepared file or the folder of a dataset (data_prep/README.md)"
    return UserError("folder.no_recordings", name=folder, found=found, advice=advice)


def _recordings(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for split in SPLITS:
        if (folder / split).is_dir():
            paths += find_event_files(folder / split)
    return paths


def _sensor_hw(path: Path) -> tuple[int, int] | None:
    """Return height and width of the sensor of a recording, None if it does not state them."""
    try:
        with closing(open_recording(path)) as recording:
            return recording.height, recording.width
    except UnknownSensorSize:
        return None
