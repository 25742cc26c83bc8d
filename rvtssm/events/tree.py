"""Where raw recordings and prepared sequences lie on disk: one folder per split, one name per recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rvtssm.records import DatasetSpec

# Files of cameras without a dataset's naming, besides the suffixes of the spec.
_PLAIN_SUFFIXES = ("_td.raw", ".raw")
RVT_FOLDER = "event_representations_v2"


@dataclass(frozen=True, slots=True)
class RawRecording:
    """One recording before preparation; `boxes_path` is None where there are no labels."""

    name: str
    events_path: Path
    boxes_path: Path | None


def find_recordings(raw_dir: Path | str, split: str, spec: DatasetSpec) -> list[RawRecording]:
    """The recordings in `raw_dir/split`, by name; of several event files of one name the spec's first suffix wins.

    ValueError where the folder does not exist.
    """
    folder = _split_folder(raw_dir, split)
    events: dict[str, Path] = {}
    for suffix in (*spec.event_suffixes, *_PLAIN_SUFFIXES):
        for path in folder.glob(f"*{suffix}"):
            events.setdefault(path.name.removesuffix(suffix), path)
    found = []
    for name in sorted(events):
        boxes_path = folder / f"{name}{spec.boxes_suffix}"
        found.append(RawRecording(name, events[name], boxes_path if boxes_path.exists() else None))
    return found


def find_boxes_without_events(raw_dir: Path | str, split: str, spec: DatasetSpec) -> list[Path]:
    """Files of boxes in `raw_dir/split` that belong to no recording, by name."""
    names = {recording.name for recording in find_recordings(raw_dir, split, spec)}
    paths = sorted(_split_folder(raw_dir, split).glob(f"*{spec.boxes_suffix}"))
    return [path for path in paths if path.name.removesuffix(spec.boxes_suffix) not in names]


def find_sequences(prepared_dir: Path | str, split: str) -> list[Path]:
    """The prepared sequences in `prepared_dir/split` by name: our `.h5` files and folders prepared by RVT."""
    folder = Path(prepared_dir) / split
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist; prepare the recordings with `rvtssm preprocess`")
    ours = [path for path in folder.glob("*.h5") if not path.name.startswith(".")]
    return sorted([*ours, *(path.parent for path in folder.glob(f"*/{RVT_FOLDER}"))])


def _split_folder(raw_dir: Path | str, split: str) -> Path:
    folder = Path(raw_dir) / split
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist; put the recordings there or choose other splits")
    return folder
