"""Find the labels of each recording: a file of its own, one per labelled frame, or a COCO file of many recordings."""

import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from rvtssm.events.label_files import LabelFiles
from rvtssm.events.label_names import RecordingNames, counts_from_one, frame_number, image_stem
from rvtssm.records import DatasetSpec

_PER_FRAME = (".txt", ".xml")
_NO_LABELS = ("classes",)  # the names of classes beside YOLO text


def find_labels(
    raw_dir: Path,
    split: str,
    spec: DatasetSpec,
    folders: Mapping[str, str],
    all_names: Callable[[], Collection[str]],
) -> dict[str, LabelFiles]:
    """Return the labels of the recordings of a split by name; recordings without labels are missing.

    Args:
        raw_dir: Folder of the dataset.
        split: train, val or test.
        spec: The dataset.
        folders: The folder of the split in which each recording lies, by the name of the recording.
        all_names: Returns the names of the recordings of all splits, which may share a file or a folder.
    """
    root = raw_dir / (spec.boxes_dir or "")
    paths = [root / path for path in shared_paths(split, spec, sorted(set(folders.values())))]
    if shared := next((path for path in paths if path.is_file()), None):
        sharing = tuple(sorted(all_names()))
        first = min(folders, default="")
        return {name: LabelFiles(name, (shared,), sharing=sharing, tells_strangers=name == first) for name in folders}
    own = {name: path for name, folder in folders.items() if (path := _own(root / folder, name, spec))}
    labels = {name: LabelFiles(name, (path,)) for name, path in own.items()}
    if spec.boxes_suffix in _PER_FRAME and len(labels) < len(folders):
        labels |= _of_frames(root, spec, folders, own, all_names())
    return labels


def shared_paths(split: str, spec: DatasetSpec, folders: Collection[str]) -> list[str]:
    """Return where a file with the labels of many recordings may lie, relative to the labels of the dataset.

    Args:
        split: train, val or test.
        spec: The dataset, with `labels: annotations/instances_{split}.json` or `labels: _annotations.coco.json`.
        folders: The folders of the split.
    """
    if spec.boxes_suffix.startswith(".") or not spec.boxes_suffix.endswith(".json"):
        return []
    name = spec.boxes_suffix.replace("{split}", split)
    return [name, *(f"{folder}/{name}" for folder in folders)]


def _own(folder: Path, name: str, spec: DatasetSpec) -> Path | None:
    """Return the label file with the name of a recording. Systems write letters such as ü in one or two characters."""
    forms = (name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
    paths = (Path(f"{folder}/{form}{spec.boxes_suffix}") for form in forms)
    return next((path for path in paths if path.exists()), None)


def _of_frames(
    root: Path, spec: DatasetSpec, folders: Mapping[str, str], own: Mapping[str, Path], all_names: Collection[str]
) -> Iterator[tuple[str, LabelFiles]]:
    """Yield the names of recordings and their label files per frame, such as `walk_0010.txt` or `walk/0010.txt`."""
    names, found, numbers = RecordingNames(all_names), dict[str, list[Path]](), []
    for folder in sorted(set(folders.values())):
        for path in sorted((root / folder).rglob(f"*{spec.boxes_suffix}")):
            stem = image_stem(path.relative_to(root / folder).as_posix())
            place = names.split(stem)
            number = frame_number(place[1]) if place is not None else None
            if place is None or number is None or path.name.startswith("."):
                continue
            if place[0] in folders and place[0] not in own:
                found.setdefault(place[0], []).append(path)
                numbers.append(number)
    is_from_one = counts_from_one(numbers)
    for name, paths in found.items():
        yield name, LabelFiles(name, tuple(paths), is_per_frame=True, is_from_one=is_from_one)


def is_label_file(path: Path) -> bool:
    """Return whether a file with the suffix of labels may hold some."""
    return path.stem not in _NO_LABELS and not path.name.startswith(".")
