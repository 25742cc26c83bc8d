"""What the files of a dataset say about each other, and must agree on: recordings, prepared files and names of classes.

These checks are cheap: they compare lists of names, and read the ends of recordings of equal size. Every verb that
reads a dataset says the same lines.
"""

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rvtssm.datasets.custom import yaml_of
from rvtssm.datasets.store import read_meta
from rvtssm.datasets.tree import (
    RawRecording,
    find_boxes_without_events,
    find_recordings,
    find_sequences,
    has_split,
)
from rvtssm.events.label_rules import usable_boxes
from rvtssm.events.labels import find_nothing
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import SPLITS
from rvtssm.system.remote import is_url, local_path
from rvtssm.system.user_error import UserError

SAMPLE_BYTES = 1 << 20  # bytes at each end of a recording whose digest tells whether it is the same as another one
_MOST_NAMED = 3  # recordings that a line names


def raw_lines(raw_dir: Path | str | None, spec: DatasetSpec) -> list[str]:
    """Return what the recordings and labels of a raw dataset do not agree on, one line each.

    Args:
        raw_dir: Folder of the recordings. A URL is not read for this.
        spec: The dataset.
    """
    if raw_dir is None or is_url(str(raw_dir)) or not Path(raw_dir).is_dir():
        return []
    splits = [split for split in SPLITS if has_split(Path(raw_dir), split, spec)]
    paths: dict[str, list[Path]] = {}
    for split in splits:
        with contextlib.suppress(UserError):  # which a verb says that reads this split
            paths[split] = [recording.events_path for recording in find_recordings(raw_dir, split, spec)]
    return [*_class_names(Path(raw_dir), splits, spec), *_twice(paths)]


def stray_line(raw_dir: Path | str, split: str, spec: DatasetSpec) -> str:
    """Return how many label files of a split belong to no recording, in one line; empty if there are none."""
    strays = find_boxes_without_events(raw_dir, split, spec)
    if not strays:
        return ""
    return f"{split}: {len(strays)} label files belong to no recording, such as {strays[0]}; copy the recording there"


def prepared_lines(prepared_dir: Path | str, raw_dir: Path | str | None, spec: DatasetSpec) -> list[str]:
    """Return what prepared files and their recordings do not agree on, one line each.

    Args:
        prepared_dir: Folder of the prepared files.
        raw_dir: Folder of the recordings, if it is known. A URL is not read for this.
        spec: The dataset.
    """
    lines = []
    for split in SPLITS:
        missing, deleted, num_raw = missing_and_deleted(prepared_dir, raw_dir, split, spec)
        if missing:
            lines.append(
                f"{split}: {len(missing)} of {num_raw} recordings in {raw_dir} are not prepared ({_named(missing)}); "
                "run `rvtssm preprocess` again"
            )
        if deleted:
            lines.append(
                f"{split}: {len(deleted)} prepared recordings are no longer among those in {raw_dir} "
                f"({_named(deleted)}); if they were removed on purpose, remove them from {prepared_dir}/{split} as well"
            )
    return lines + _prepared_twice(prepared_dir)


def missing_and_deleted(
    prepared_dir: Path | str, raw_dir: Path | str | None, split: str, spec: DatasetSpec
) -> tuple[list[str], list[str], int]:
    """Return the recordings of a split that are not prepared, the prepared ones without a recording, and how many are.

    A recording of which nothing would be prepared is not missing.

    Args:
        prepared_dir: Folder of the prepared files.
        raw_dir: Folder of the recordings.
        split: train, val or test.
        spec: The dataset.
    """
    folder = local_path(prepared_dir, split) / split
    if raw_dir is None or is_url(str(raw_dir)) or not Path(raw_dir).is_dir() or not folder.is_dir():
        return [], [], 0
    if not has_split(Path(raw_dir), split, spec):
        return [], [], 0
    recordings = {recording.name: recording for recording in find_recordings(raw_dir, split, spec)}
    prepared = {name_in(folder, path) for path in find_sequences(prepared_dir, split)}
    if not recordings or not prepared:
        return [], [], 0
    missing = [name for name in sorted({*recordings} - prepared) if _is_usable(recordings[name], split, spec)]
    return missing, sorted(prepared - {*recordings}), len(prepared & {*recordings}) + len(missing)


def name_in(folder: Path, path: Path) -> str:
    """Return the name of a prepared recording in the folder of its split."""
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_file() else path.name


def _is_usable(recording: RawRecording, split: str, spec: DatasetSpec) -> bool:
    """Return whether something of a recording would be prepared."""
    if recording.labels is None:
        return False
    try:
        boxes = recording.read_boxes(spec)
    except UserError:  # which `preprocess` says
        return True
    is_train = split == "train"
    has_nothing = bool(find_nothing(boxes).any()) and (is_train or spec.scores_empty_images)
    return has_nothing or bool(len(usable_boxes(boxes, spec, "exact", is_train)))


def _named(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown}, ..."


def _class_names(raw_dir: Path, splits: Collection[str], spec: DatasetSpec) -> Iterator[str]:
    """Yield where names of classes beside YOLO text are others than those of the dataset, or in another order."""
    if not spec.boxes_suffix.endswith(".txt"):
        return  # other labels have the names themselves
    mine = dict(zip(spec.disk_class_ids, spec.class_names, strict=True))
    root = raw_dir / (spec.boxes_dir or "")
    for folder in dict.fromkeys((raw_dir, root, *(root / split for split in splits))):
        for name in ("classes.txt", "obj.names", "data.yaml", "data.yml"):
            theirs = _listed_names(folder / name)
            if theirs and any(theirs.get(number, "") != own for number, own in mine.items()):
                own = ", ".join(f"{number} {name}" for number, name in sorted(mine.items()))
                other = ", ".join(f"{number} {name}" for number, name in sorted(theirs.items()))
                yield (
                    f"{folder / name} names the classes {other}, but the dataset {own}; if the labels were made with "
                    f"{name}, give its names in its order"
                )


def _listed_names(path: Path) -> dict[int, str]:
    """Return the names of classes in a file of a label tool by number; none without such a file."""
    if not path.is_file():
        return {}
    if path.suffix in (".yaml", ".yml"):
        content: Any = yaml_of(path)
        names = content.get("names") if isinstance(content, Mapping) else None
        if isinstance(names, Mapping):
            return {int(number): str(name) for number, name in names.items() if str(number).isdecimal()}
        return {number: str(name) for number, name in enumerate(names)} if isinstance(names, list) else {}
    lines = path.read_text("utf-8-sig", errors="replace").splitlines()
    return dict(enumerate(line.strip() for line in lines if line.strip()))


def _twice(paths: Mapping[str, Collection[Path]]) -> list[str]:
    """Return which recordings lie in two splits, under any name."""
    by_size: dict[int, list[tuple[str, Path]]] = {}
    for split, of_split in paths.items():
        for path in of_split:
            by_size.setdefault(path.stat().st_size, []).append((split, path))
    found: dict[str, tuple[str, Path]] = {}
    same = []
    for candidates in by_size.values():
        if len({split for split, _ in candidates}) < 2:
            continue
        found.clear()
        for split, path in candidates:
            first = found.setdefault(_fingerprint(path), (split, path))
            if first[0] != split:
                same.append(f"{path} ({split}) is the same recording as {first[1]} ({first[0]})")
    if not same:
        return []
    return [f"{len(same)} recordings are in two splits, so scores are too high; {same[0]}"]


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, path.stat().st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _prepared_twice(prepared_dir: Path | str) -> list[str]:
    """Return which prepared recordings of two splits were made from the same file."""
    found: dict[str, tuple[str, Path]] = {}
    same = []
    for split in SPLITS:
        if not (local_path(prepared_dir, split) / split).is_dir():
            continue
        for path in find_sequences(prepared_dir, split):
            try:
                source = read_meta(path).get("source", {}) if path.is_file() else {}
            except UserError:  # which the verbs say when they read it
                continue
            if not source.get("fingerprint"):
                continue
            first = found.setdefault(source["fingerprint"], (split, path))
            if first[0] != split:
                same.append(f"{path} ({split}) was made from the same recording as {first[1]} ({first[0]})")
    if not same:
        return []
    return [f"{len(same)} prepared recordings are in two splits, so scores are too high; {same[0]}"]
