"""Recognise the dataset of a folder of recordings, by a file that describes it, its layout or its sensor."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rvtssm.checks.inspect_dataset import SPLITS
from rvtssm.datasets import DATASETS, DatasetConfig, with_described
from rvtssm.datasets.custom import FILE
from rvtssm.datasets.tree import find_event_files
from rvtssm.readers import open_recording
from rvtssm.readers.header import UNSAID_SIZE, UnknownSensorSize
from rvtssm.system.user_error import UserError

_BY_SENSOR = ("gen1", "onempx")  # same names of files; the size in the files tells which


def with_recognised(dataset: DatasetConfig, folder: Path) -> DatasetConfig:
    """Return the settings with the name of the dataset in a folder, unchanged if it cannot be told.

    Args:
        dataset: Settings without a name. A sensor size that they give is kept.
        folder: The folder of the dataset.

    Raises:
        UserError: A file in the folder that describes or belongs to the dataset cannot be read.
    """
    if (found := with_described(replace(dataset, raw_dir=str(folder)))).name:
        return found
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
        found = _sensor_hw(paths[0])
        size = f"which {UNSAID_SIZE}" if found is None else f"{found[1]} x {found[0]} pixels"
        return UserError(
            "inspect.dataset_unknown",
            f"{folder} has recordings in {', '.join(dict.fromkeys(f'{path.parent.name}/' for path in paths))} (in all "
            f"{len(paths)}, the first is {paths[0].name}, {size}), but nothing says which dataset they are; type "
            f"`rvtssm inspect {folder} dataset=NAME` with one of {', '.join(sorted(DATASETS))}, or describe your own "
            f"in {folder / FILE} (data_prep/README.md)",
        )
    if paths := find_event_files(folder):
        return UserError(
            "inspect.no_splits",
            f"{folder} has no train/, val/ or test/, but recordings (in all {len(paths)}); inspect one of them, as in "
            f"`rvtssm inspect {paths[0]}`, or the folder of a dataset, which has recordings in train/, val/ and test/",
        )
    there = ", ".join(sorted(f"{path.name}{'/' * path.is_dir()}" for path in folder.iterdir())[:9]) or "nothing"
    return UserError(
        "inspect.no_recordings",
        f"{folder} holds no recordings in train/, val/ or test/, but {there}; give a recording, a prepared file or the "
        "folder of a dataset (data_prep/README.md)",
    )


def _recordings(folder: Path) -> list[Path]:
    return [path for split in SPLITS if (folder / split).is_dir() for path in find_event_files(folder / split)]


def _sensor_hw(path: Path) -> tuple[int, int] | None:
    """Return height and width of the sensor of a recording, None if it does not state them."""
    try:
        with closing(open_recording(path)) as recording:
            return recording.height, recording.width
    except UnknownSensorSize:
        return None
