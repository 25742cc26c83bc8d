"""Find raw recordings and prepared sequences: one folder per split, one name per recording.

A folder may also be given by its URL. The returned paths then point to copies on this machine.
"""

import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rvtssm.events.label_files import LABEL_READERS, read_label_file
from rvtssm.events.labels import Boxes
from rvtssm.readers import open_with
from rvtssm.readers.remote import local_path
from rvtssm.records import EVENT_SUFFIXES, DatasetSpec
from rvtssm.system.user_error import UserError

# Suffixes of camera files that do not follow the dataset's naming, in addition to the suffixes of the spec.
_PLAIN_SUFFIXES = ("_td.raw", ".raw")
_LABEL_SUFFIXES = ("_bbox.npy", *sorted(LABEL_READERS.keys() - {".npy"}))  # a plain .npy may hold events
RVT_FOLDER = "event_representations_v2"


@dataclass(frozen=True, slots=True)
class RawRecording:
    """One recording before preparation. `boxes_path` is None if it has no labels."""

    name: str
    events_path: Path
    boxes_path: Path | None

    def read_boxes(self, spec: DatasetSpec) -> Boxes:
        """Return the boxes of the recording in order of time, from a label file of any format.

        Labels without a time get the time just after the last event.

        Args:
            spec: The dataset.

        Returns:
            (N,) of BOX_DTYPE.

        Raises:
            UserError: The recording has no label file, or the file cannot be read.
        """
        if self.boxes_path is None:
            raise UserError(
                f"{self.events_path} has no labels ({self.name}{spec.boxes_suffix}); {self._other_labels(spec)}"
                "copy them, or prepare the recording without labels (labels=none)"
            )
        end_us = None
        if self.boxes_path.suffix in (".txt", ".xml"):
            with closing(open_with(self.events_path, spec.read_options)) as recording:
                end_us = recording.time_range_us[1] + 1  # windows are half-open, so one that ends here holds all events
        return read_label_file(self.boxes_path, spec, end_us)

    def _other_labels(self, spec: DatasetSpec) -> str:
        """Return advice on a label file of another format beside the recording, or nothing if there is none."""
        if spec.name != "custom" or spec.boxes_dir != spec.events_dir:
            return ""
        beside = (self.events_path.with_name(f"{Path(self.name).name}{suffix}") for suffix in _LABEL_SUFFIXES)
        found = next((path for path in beside if path.is_file() and path != self.events_path), None)
        if found is None:
            return ""
        suffix = found.name.removeprefix(Path(self.name).name)
        return f"there is {found.name}, so set `labels: {suffix}` in dataset.yaml; otherwise "


def check_folder(raw_dir: Path | str) -> None:
    """Raise UserError if the folder of a dataset does not exist."""
    if not Path(raw_dir).is_dir():
        raise UserError(
            f"the folder {raw_dir} does not exist; check dataset.raw_dir, which holds train/, val/ and test/"
        )


def has_split(raw_dir: Path, split: str, spec: DatasetSpec) -> bool:
    """Return whether a folder for the recordings of a split exists."""
    root = raw_dir / (spec.events_dir or "")
    return any((root / pattern.partition("/")[0]).is_dir() for pattern in _patterns(split, spec))


def find_recordings(raw_dir: Path | str, split: str, spec: DatasetSpec) -> list[RawRecording]:
    """Return the recordings of a split, sorted by name.

    The name of a recording is its path inside the folder of the split, without the suffix. If several event files have
    the same name, the suffix that comes first in the spec wins, and a warning names the others.

    Args:
        raw_dir: Folder or URL of the dataset.
        split: train, val or test.
        spec: The dataset.

    Raises:
        UserError: The folder of the split does not exist, or two folders of the split hold recordings of one name.
    """
    raw_dir = _folders_of(raw_dir, split, spec)
    found: dict[str, RawRecording] = {}
    folders: dict[str, str] = {}  # of each name
    unused: list[tuple[Path, Path]] = []  # the event file that is used, and another of the same name
    claimed: set[Path] = set()  # `a_td.raw` has two fitting suffixes; the longer one comes first
    for suffix in (*spec.event_suffixes, *_PLAIN_SUFFIXES):
        for path, folder, name in _matches(raw_dir, spec.events_dir, split, spec, suffix):
            if path in claimed or (path.name.endswith(spec.boxes_suffix) and spec.boxes_dir is None):
                continue
            claimed.add(path)
            if folders.setdefault(name, folder) != folder:
                raise UserError(
                    f"{found[name].events_path} and {path} have the same name, but a split needs one name per "
                    "recording; rename one of them, with its labels"
                )
            if name in found:
                unused.append((found[name].events_path, path))
                continue
            boxes_path = Path(raw_dir, spec.boxes_dir or "", folder, f"{name}{spec.boxes_suffix}")
            found[name] = RawRecording(name, path, boxes_path if boxes_path.exists() else None)
    if unused:
        used, other = unused[0]
        warnings.warn(
            f"{len(unused)} event files are left out, such as {other}, because {used.name} is a recording of the same "
            "name; rename or delete one of the two",
            stacklevel=2,
        )
    return [found[name] for name in sorted(found)]


def find_event_files(folder: Path | str) -> list[Path]:
    """Return the files in a folder that have the suffix of a recording, sorted by name."""
    paths = [path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith(".")]
    return sorted(path for path in paths if path.name.endswith(EVENT_SUFFIXES) and not path.name.endswith("_bbox.npy"))


def find_boxes_without_events(raw_dir: Path | str, split: str, spec: DatasetSpec) -> list[Path]:
    """Return the label files of a split that belong to no recording, sorted by name.

    Args:
        raw_dir: Folder or URL of the dataset.
        split: train, val or test.
        spec: The dataset.
    """
    raw_dir = _folders_of(raw_dir, split, spec)
    names = {recording.name for recording in find_recordings(raw_dir, split, spec)}
    matches = _matches(raw_dir, spec.boxes_dir, split, spec, spec.boxes_suffix)
    return sorted(path for path, _, name in matches if name not in names)


def find_sequences(prepared_dir: Path | str, split: str) -> list[Path]:
    """Return the prepared sequences in `prepared_dir/split` by name: our `.h5` files and folders prepared by RVT.

    Raises:
        UserError: The folder does not exist.
    """
    folder = local_path(prepared_dir, split) / split
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; prepare the recordings with `rvtssm preprocess`")
    ours = [path for path in folder.glob("*.h5") if not path.name.startswith(".")]
    return sorted([*ours, *(path.parent for path in folder.glob(f"*/{RVT_FOLDER}"))])


def _patterns(split: str, spec: DatasetSpec) -> tuple[str, ...]:
    return spec.split_sources.get(split, (f"{split}/*",))


def _folders_of(raw_dir: Path | str, split: str, spec: DatasetSpec) -> Path:
    """Return the folder of a dataset on this machine. Of a URL, only the folders of the split are copied."""
    folders = {pattern.partition("/")[0] for pattern in _patterns(split, spec)}
    parts = {f"{kind or ''}/{folder}".lstrip("/") for kind in (spec.events_dir, spec.boxes_dir) for folder in folders}
    return local_path(raw_dir, *sorted(parts))


def _matches(
    raw_dir: Path | str, sub_dir: str | None, split: str, spec: DatasetSpec, suffix: str
) -> Iterator[tuple[Path, str, str]]:
    """Yield the path, the folder of the split and the name of every file of the split with this suffix."""
    root = Path(raw_dir) / (sub_dir or "")
    patterns = _patterns(split, spec)
    folders = {pattern.partition("/")[0] for pattern in patterns}
    if not any((root / folder).is_dir() for folder in folders):
        check_folder(raw_dir)
        wanted = " and ".join(str(root / folder) for folder in sorted(folders))
        advice = "put the recordings there or choose other splits"
        if spec.name == "custom":
            advice += (
                "; if one folder, such as all/, holds the recordings of all splits, divide them in dataset.yaml, as in "
                "split_sources: {train: [all/walk1*], val: [all/walk2*]}"
            )
        raise UserError(f"{wanted} does not exist; {advice}")
    for pattern in patterns:
        folder = pattern.partition("/")[0]
        for path in sorted(root.glob(pattern + suffix)):
            if not path.name.startswith("."):
                yield path, folder, path.relative_to(root / folder).as_posix().removesuffix(suffix)
