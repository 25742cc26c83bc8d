"""What the files of a dataset say about each other, and must agree on: recordings, prepared files and names of classes.

These checks are cheap: they compare lists of names, and read the ends of recordings of equal size. Every verb that
reads a dataset says the same lines.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rvtssm.datasets.custom import listed_names
from rvtssm.datasets.prepare_recording import digest_of_ends
from rvtssm.datasets.store import Meta, differing, read_meta, shared_settings
from rvtssm.datasets.tree import (
    RawRecording,
    find_all_sequences,
    find_boxes_without_events,
    find_recordings,
    has_split,
    recordings_by_name,
)
from rvtssm.events.label_rules import usable_boxes
from rvtssm.events.labels import find_nothing
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import SPLITS
from rvtssm.system.user_error import UserError

_MOST_NAMED = 3  # recordings that a line names
RECORDING_IS_ELSEWHERE = "copy the recording there, or name the labels like it"  # if labels belong to none


def raw_lines(raw_dir: Path | str | None, spec: DatasetSpec, has_strays: bool = True) -> list[str]:
    """Return what the recordings and labels of a raw dataset do not agree on, one line each.

    Args:
        raw_dir: Folder of the recordings. A URL is not read for this.
        spec: The dataset.
        has_strays: Whether to name labels of no recording, which `preprocess` refuses one by one.
    """
    if raw_dir is None:
        return []
    # Nothing lies at the path of a URL.
    splits = [split for split in SPLITS if has_split(Path(raw_dir), split, spec)]
    lines = list(_class_names(Path(raw_dir), splits, spec))
    paths: list[tuple[str, Path]] = []
    for split in splits:
        with contextlib.suppress(UserError):  # which a verb says that reads this split
            paths += [(split, recording.events_path) for recording in find_recordings(raw_dir, split, spec)]
            if has_strays and (strays := find_boxes_without_events(raw_dir, split, spec)):
                text = f"{len(strays)} label files belong to no recording, such as {strays[0]}"
                lines.append(f"{split}: {text}; {RECORDING_IS_ELSEWHERE}")
    return lines + _twice(_of_raw(paths))


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
                f"{split}: {len(missing)} of {num_raw} recordings in {raw_dir} are not prepared ({named(missing)}); "
                "run `rvtssm preprocess` again"
            )
        if deleted:
            lines.append(
                f"{split}: {len(deleted)} prepared recordings are no longer among those in {raw_dir} "
                f"({named(deleted)}); if they were removed on purpose, remove them from {prepared_dir}/{split} as well"
            )
    return lines + lines_on_files(prepared_dir)


def lines_on_files(prepared_dir: Path | str) -> list[str]:
    """Return what prepared files do not agree on, one line each."""
    metas = list(_metas(prepared_dir))
    told = [(meta["source"]["fingerprint"], split, path) for split, path, meta in metas if meta.get("source")]
    return _unlike(metas) + _twice(told)


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
    prepared = {name_of(path) for of_split, path in find_all_sequences(prepared_dir) if of_split == split}
    if raw_dir is None or not prepared or not has_split(Path(raw_dir), split, spec):
        return [], [], 0
    recordings = recordings_by_name(raw_dir, split, spec)
    if not recordings:
        return [], [], 0
    missing = [name for name in sorted({*recordings} - prepared) if _is_usable(recordings[name], split, spec)]
    return missing, sorted(prepared - {*recordings}), len(prepared & {*recordings}) + len(missing)


def name_of(path: Path) -> str:
    """Return the name of the recording of a prepared file, or of a folder of RVT."""
    return path.name.removesuffix(".h5")


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


def named(names: Collection[str]) -> str:
    """Return the first names of a list."""
    shown = ", ".join(list(names)[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown}, ..."


def _class_names(raw_dir: Path, splits: Collection[str], spec: DatasetSpec) -> Iterator[str]:
    """Yield where names of classes beside YOLO text are others than those of the dataset, or in another order."""
    if not any(suffix.endswith(".txt") for suffix in spec.boxes_suffixes):
        return  # other labels have the names themselves
    mine = dict(zip(spec.disk_class_ids, spec.class_names, strict=True))
    root = raw_dir / (spec.boxes_dir or "")
    for folder in dict.fromkeys((raw_dir, root, *(root / split for split in splits))):
        for name in ("classes.txt", "obj.names", "data.yaml", "data.yml"):
            theirs = listed_names(folder / name)
            if theirs and any(theirs.get(number, "") != own for number, own in mine.items()):
                yield (
                    f"{folder / name} names the classes {_numbered(theirs)}, but the dataset {_numbered(mine)}; if the "
                    f"labels were made with {name}, give its names in its order"
                )


def _numbered(names: Mapping[Any, Any]) -> str:
    return ", ".join(f"{number} {name}" for number, name in sorted(names.items()))


def _twice(fingerprints: Iterable[tuple[str, str, Path]]) -> list[str]:
    """Return which recordings lie in two splits, under any name, in one line; none if there are none.

    Args:
        fingerprints: The fingerprint, the split and the file of each recording.
    """
    first: dict[str, tuple[str, Path]] = {}
    same = []
    for fingerprint, split, path in fingerprints:
        other_split, other = first.setdefault(fingerprint, (split, path))
        if other_split != split:
            same.append(f"{path} ({split}) is the same recording as {other} ({other_split})")
    text = f"recordings that are in two splits: {len(same)}, so scores are too high; divide them"
    return [f"{text}; {same[0]}"] if same else []


def _of_raw(paths: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, str, Path]]:
    """Yield the fingerprints of the recordings that have the size of another one."""
    by_size: dict[int, list[tuple[str, Path]]] = {}
    for split, path in paths:
        by_size.setdefault(path.stat().st_size, []).append((split, path))
    for candidates in by_size.values():
        if len(dict(candidates)) > 1:  # of several splits
            for split, path in candidates:
                yield digest_of_ends(path).hexdigest(), split, path


def _metas(prepared_dir: Path | str) -> Iterator[tuple[str, Path, Meta]]:
    """Yield the metadata of all prepared files that can be read."""
    for split, path in find_all_sequences(prepared_dir):
        with contextlib.suppress(UserError):  # which the verbs say when they read it
            if path.is_file():
                yield split, path, read_meta(path)


def _unlike(metas: Sequence[tuple[str, Path, Meta]]) -> list[str]:
    """Return which prepared file was made with other settings than the first one, if there is one."""
    first = shared_settings(metas[0][2]) if metas else {}
    for _, path, meta in metas:
        mine = shared_settings(meta)
        if differences := differing(mine, {**dict.fromkeys(mine), **first}, ", others with "):
            return [f"{path} was made with {'; '.join(differences)}; prepare it again"]
    return []
