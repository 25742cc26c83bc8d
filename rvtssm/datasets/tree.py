"""Find raw recordings with their labels, and prepared sequences: one folder per split, one name per recording.

The labels of a recording are a file of its own, one file per labelled frame, or a COCO file of many recordings.
A folder may also be given by its URL. The returned paths then point to copies on this machine.
"""

import contextlib
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rvtssm.events.label_files import LABEL_SUFFIXES, LabelFiles, is_shared
from rvtssm.events.label_names import LabelNames
from rvtssm.events.labels import BOX_DTYPE, Boxes
from rvtssm.readers import event_suffixes, open_with
from rvtssm.readers.csv_text import is_event_text
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import SPLITS
from rvtssm.system.files import check_name
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

# Suffixes of camera files that do not follow the dataset's naming, in addition to the suffixes of the spec.
_PLAIN_SUFFIXES = ("_td.raw", ".raw")
_LABEL_SUFFIXES = ("_bbox.npy", *sorted({*LABEL_SUFFIXES} - {".npy"}))  # a plain .npy may hold events
RVT_FOLDER = "event_representations_v2"
_PER_FRAME = (".txt", ".xml")  # labels that may lie in one file per frame
# Text that tools and people put beside YOLO text: the names of classes, lists of images, notes.
_NO_LABELS = ("classes", "labels", "train", "val", "test", "readme", "license", "notes", "predefined_classes")


@dataclass(frozen=True, slots=True)
class RawRecording:
    """One recording before preparation. `labels` is None if it has no label file."""

    name: str
    events_path: Path
    labels: LabelFiles | None

    @property
    def boxes_path(self) -> Path | None:
        """The file of its labels, or the folder of its label files per frame."""
        if self.labels is None:
            return None
        if self.labels.places:
            return self.labels.paths[0].parent
        return self.labels.paths[0]

    def read_boxes(self, spec: DatasetSpec) -> Boxes:
        """Return the boxes of the recording in order of time; none if it has no label file. See `read_labels`."""
        return self.read_labels(spec)[0]

    def read_labels(self, spec: DatasetSpec) -> tuple[Boxes, Counter[str]]:
        """Return the boxes of the recording in order of time, from label files of any format.

        Labels without a time get the time just after the last event.

        Args:
            spec: The dataset.

        Returns:
            (N,) of BOX_DTYPE, and how many entries were left out or read in another way, by reason.

        Raises:
            UserError: A label file cannot be read.
        """
        if self.labels is None:
            return np.empty(0, BOX_DTYPE), Counter()
        offset = self._offset(spec)
        end_us = None
        if self.labels.need_end(spec) or not isinstance(offset, int):
            with contextlib.closing(open_with(self.events_path, spec.read_options)) as recording:
                first_us, last_us = recording.time_range_us
                end_us = last_us + 1  # windows are half-open, so one that ends here holds all events
                if isinstance(offset, str):
                    offset = first_us
                elif offset is None and (offset := recording.time_shift_us) is None:
                    found = "does not tell the time shift of its labels, as RAW files and DSEC do"
                    advice = "give dataset.label_offset_us=N or from_start in place of auto"
                    raise UserError("labels.no_time", name=recording.path, found=found, advice=advice)
        return self.labels.read(spec, end_us, offset)

    def _offset(self, spec: DatasetSpec) -> int | str | None:
        """Return what is added to the times of labels, see `DatasetSpec.label_offset_us`."""
        if not isinstance(spec.label_offset_us, Mapping):
            return spec.label_offset_us
        if self.name not in spec.label_offset_us:
            advice = "add it to the table; 0 moves nothing"
            raise UserError("setting.missing", name=f"label_offset_us of {self.name}", advice=advice)
        return spec.label_offset_us[self.name]

    def why_unlabelled(self, spec: DatasetSpec) -> str:
        """Return in words that the recording has no boxes, and which file was expected."""
        if self.labels is not None:
            return f"{self.boxes_path} holds no boxes of {self.name}"
        beside = (self.events_path.with_name(f"{Path(self.name).name}{suffix}") for suffix in _LABEL_SUFFIXES)
        label_file = next((path for path in beside if path.is_file() and path != self.events_path), None)
        advice = ""
        if label_file is not None and spec.name == "custom" and spec.boxes_dir == spec.events_dir:
            suffix = label_file.name.removeprefix(Path(self.name).name)
            advice = f"; there is {label_file.name}, so set `labels: {suffix}` in dataset.yaml"
        return f"{self.events_path} has no labels ({self.name}{spec.boxes_suffixes[0]}){advice}"


def nothing_there(where: object, what: str) -> UserError:
    """Return the error for a place that holds `what`, such as "no recordings in train"."""
    return UserError("file.missing", name=where, found=f"it holds {what}", advice="see data_prep/README.md")


def has_split(raw_dir: Path, split: str, spec: DatasetSpec) -> bool:
    """Return whether a folder for the recordings of a split exists."""
    root = raw_dir / (spec.events_dir or "")
    return any((root / folder).is_dir() for folder in _folders(split, spec))


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
    events = _find_events(raw_dir, split, spec)
    labels = _find_labels(raw_dir, split, spec, events)
    return [RawRecording(name, events[name], labels.get(name)) for name in sorted(events)]


def recordings_by_name(raw_dir: Path | str, split: str, spec: DatasetSpec) -> dict[str, RawRecording]:
    """Return the recordings of a split by their names, see `find_recordings`."""
    return {recording.name: recording for recording in find_recordings(raw_dir, split, spec)}


def _find_events(raw_dir: Path, split: str, spec: DatasetSpec) -> dict[str, Path]:
    """Return the event file of each recording by name."""
    root = raw_dir / (spec.events_dir or "")
    events = dict[str, Path]()
    _check_folders(raw_dir, root, split, spec)
    unused: list[tuple[Path, Path]] = []  # the event file that is used, and another of the same name
    claimed: set[Path] = set()  # `a_td.raw` has two fitting suffixes; the longer one comes first
    # The first suffix that fits names the recording.
    for suffix in (*suffixes_of(spec), *_PLAIN_SUFFIXES):
        for path, name in _glob(root, split, spec, suffix):
            is_label = path.name.endswith(spec.boxes_suffixes) and spec.boxes_dir is None
            if path in claimed or is_label or not _may_hold_events(path):
                continue
            claimed.add(path)
            other = events.setdefault(name, path)
            if _folder_of(root, other) != _folder_of(root, path):
                found = f"has the name of {other}, another recording of the split"
                raise UserError("file.ambiguous", name=path, found=found, advice="rename one of them, with its labels")
            if other != path:
                unused.append((other, path))
    if unused:
        used, other = unused[0]
        warnings.warn(
            f"{len(unused)} event files are left out, such as {other}, because {used.name} is a recording of the same "
            "name; rename or delete one of the two",
            stacklevel=2,
        )
    return events


def _all_names(raw_dir: Path, spec: DatasetSpec) -> set[str]:
    """Return the names of the recordings of all splits that are there."""
    names = set[str]()
    for split in {*SPLITS, *spec.split_sources}:
        if has_split(raw_dir, split, spec):
            names.update(_find_events(raw_dir, split, spec))
    return names


def suffixes_of(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the ends of the names of a dataset's recordings."""
    return spec.event_suffixes or event_suffixes()


def find_event_files(folder: Path | str) -> list[Path]:
    """Return the files in a folder that have the suffix of a recording, sorted by name."""
    paths = []
    for path in sorted(Path(folder).iterdir()):
        if path.name.endswith(event_suffixes()) and path.is_file() and _may_hold_events(path):
            check_name(path.name)
            paths.append(path)
    return paths


def _may_hold_events(path: Path) -> bool:
    """Return whether a file with the suffix of a recording may be one: it can also hold boxes, or text be notes."""
    if path.name.startswith(".") or path.name.endswith("_bbox.npy"):
        return False
    return path.suffix != ".txt" or is_event_text(path)


def find_boxes_without_events(raw_dir: Path | str, split: str, spec: DatasetSpec) -> list[Path]:
    """Return the label files of a split that belong to no recording, sorted by name.

    Args:
        raw_dir: Folder or URL of the dataset.
        split: train, val or test.
        spec: The dataset.
    """
    raw_dir = _folders_of(raw_dir, split, spec)
    labels = _find_labels(raw_dir, split, spec, _find_events(raw_dir, split, spec))
    used = {path for files in labels.values() for path in files.paths}
    root = raw_dir / (spec.boxes_dir or "")
    strays = []
    for suffix in spec.boxes_suffixes:
        for path, _ in _glob(root, split, spec, suffix):
            if path not in used and _is_label_file(path):
                strays.append(path)
    return sorted(strays)


def find_sequences(prepared_dir: Path | str, split: str) -> list[Path]:
    """Return the prepared sequences in `prepared_dir/split` by name: our `.h5` files and folders prepared by RVT.

    Raises:
        UserError: The folder does not exist.
    """
    folder = local_path(prepared_dir, split) / split
    if not folder.is_dir():
        advice = "prepare the recordings with `rvtssm preprocess`"
        raise UserError("file.missing", name=folder, found="does not exist", advice=advice)
    of_rvt = [path.parent for path in folder.glob(f"*/{RVT_FOLDER}")]
    return sorted([*folder.glob("[!.]*.h5"), *of_rvt])


def find_all_sequences(prepared_dir: Path | str) -> list[tuple[str, Path]]:
    """Return the prepared sequences of all splits that are there, each with its split."""
    found = []
    for split in SPLITS:
        if (local_path(prepared_dir, split) / split).is_dir():
            found += [(split, path) for path in find_sequences(prepared_dir, split)]
    return found


def _patterns(split: str, spec: DatasetSpec) -> tuple[str, ...]:
    return spec.split_sources.get(split, (f"{split}/*",))


def _folders(split: str, spec: DatasetSpec) -> set[str]:
    """Return the folders of a split, relative to those of the dataset."""
    return {pattern.partition("/")[0] for pattern in _patterns(split, spec)}


def _folders_of(raw_dir: Path | str, split: str, spec: DatasetSpec) -> Path:
    """Return the folder of a dataset on this machine. Of a URL, only the folders of the split are copied."""
    folders = _folders(split, spec)
    parts = _inside(spec.events_dir, folders)
    parts |= _inside(spec.boxes_dir, [*folders, *_shared_paths(split, spec, ())])
    return local_path(raw_dir, *sorted(parts))


def _inside(folder: str | None, paths: Collection[str]) -> set[str]:
    return {f"{folder or ''}/{path}".lstrip("/") for path in paths}


def _check_folders(raw_dir: Path, root: Path, split: str, spec: DatasetSpec) -> None:
    """Raise UserError if no folder of a split exists."""
    folders = [root / folder for folder in sorted(_folders(split, spec))]
    if any(map(Path.is_dir, folders)):
        return
    advice = "put the recordings there or choose other splits"
    if not raw_dir.is_dir():
        advice = "check dataset.raw_dir, which holds train/, val/ and test/"
    elif spec.name == "custom":
        example = "split_sources: {train: [all/walk1*], val: [all/walk2*]} in dataset.yaml"
        advice += f"; if one folder, such as all/, holds those of all splits, divide them, as in {example}"
    raise UserError("file.missing", name=" and ".join(map(str, folders)), found="does not exist", advice=advice)


def _glob(root: Path, split: str, spec: DatasetSpec, suffix: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and the name of every file of a split with this suffix: its path in its folder without suffix."""
    for pattern in _patterns(split, spec):
        for path in sorted(root.glob(pattern + suffix)):
            if not path.name.startswith("."):
                check_name(path.name)
                name = path.relative_to(root / _folder_of(root, path))
                yield path, name.as_posix().removesuffix(suffix)


def _folder_of(root: Path, path: Path) -> str:
    return path.relative_to(root).parts[0]


def _find_labels(raw_dir: Path, split: str, spec: DatasetSpec, events: Mapping[str, Path]) -> dict[str, LabelFiles]:
    """Return the labels of the recordings of a split by name; those of other recordings may be among them.

    Args:
        raw_dir: Folder of the dataset.
        split: train, val or test.
        spec: The dataset.
        events: The files of the recordings.

    Raises:
        UserError: The name of a file does not have the form of `label_names`, or a recording has labels of two kinds.
    """
    root = raw_dir / (spec.boxes_dir or "")
    found = dict[str, LabelFiles]()
    shared = [root / path for path in _shared_paths(split, spec, _folders(split, spec))]
    # One file may hold the labels of all recordings.
    if path := next(filter(Path.is_file, shared), None):
        sharing = tuple(sorted(_all_names(raw_dir, spec)))
        return {name: LabelFiles(name, (path,), sharing=sharing) for name in events}
    for suffix in spec.boxes_suffixes:
        of_kind = _own_files(root, split, spec, suffix, events)
        # Files of frames may also be of recordings of other splits, whose labels lie in the same folder.
        if suffix in _PER_FRAME and not of_kind.keys() >= events.keys():
            taken = {*events.values(), *(files.paths[0] for files in of_kind.values())}
            of_kind |= _files_of_frames(root, split, spec, suffix, taken, _all_names(raw_dir, spec))
        for name in of_kind.keys() & found.keys():
            text = f"{name} has labels in {found[name].paths[0]} as well"
            raise UserError("file.ambiguous", name=of_kind[name].paths[0], found=text, advice="keep one of them")
        found |= of_kind
    return found


def _shared_paths(split: str, spec: DatasetSpec, folders: Collection[str]) -> list[str]:
    """Return where a file with the labels of many recordings may lie, relative to the labels of the dataset.

    Args:
        split: train, val or test.
        spec: The dataset, with `labels: annotations/instances_{split}.json` or `labels: _annotations.coco.json`.
        folders: The folders of the split.
    """
    name = spec.boxes_suffixes[0].replace("{split}", split)
    return [name, *(f"{folder}/{name}" for folder in sorted(folders))] if is_shared(name) else []


def _own_files(
    root: Path, split: str, spec: DatasetSpec, suffix: str, events: Mapping[str, Path]
) -> dict[str, LabelFiles]:
    """Return the label files with the names of recordings. Systems write letters such as ü in one or two characters."""
    written = {unicodedata.normalize("NFC", name): name for name in events}
    files = {}
    for path, name in _glob(root, split, spec, suffix):
        if recording := written.get(unicodedata.normalize("NFC", name)):
            files[recording] = LabelFiles(recording, (path,))
    return files


def _files_of_frames(
    root: Path, split: str, spec: DatasetSpec, suffix: str, taken: Collection[Path], all_names: Collection[str]
) -> dict[str, LabelFiles]:
    """Return label files per frame, such as `walk_0010.txt` or `walk/0010.txt`, by the names of their recordings.

    Args:
        root: The folder of the labels.
        split: train, val or test.
        spec: The dataset.
        suffix: The end of their names.
        taken: Files that are recordings, or the labels of a whole recording.
        all_names: The names of the recordings of all splits.

    Raises:
        UserError: The name of a file does not have the form of `label_names`.
    """
    # Without `{recording}` in its form, a name is of the only recording there is.
    only = next(iter(all_names)) if spec.label_names and len(all_names) == 1 else None
    names = LabelNames(spec.label_names, all_names, only)
    entries = []
    # Each name says of which recording and time it is.
    for folder in sorted(_folders(split, spec)):
        for path in sorted((root / folder).rglob(f"*{suffix}")):
            if path in taken or not _is_label_file(path):
                continue
            name = path.relative_to(root / folder).as_posix()
            place = names.read(name)
            if place is None:
                raise names.refused(str(path), name)
            entries.append((path, name, place))
    # Some names of no recording are other files; only such names are a mistake.
    by_recording, _, is_from_one = names.by_recording(entries, root)
    found = {}
    for recording, (paths, places) in by_recording.items():
        found[recording] = LabelFiles(recording, tuple(paths), tuple(places), is_from_one)
    return found


def _is_label_file(path: Path) -> bool:
    """Return whether a file with the suffix of labels may hold some."""
    return path.stem.casefold() not in _NO_LABELS and not path.name.startswith(".")
