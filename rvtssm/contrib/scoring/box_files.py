"""Read labels and detections of any program, in the forms that README.md writes down and no other.

Labels are a COCO data set, or boxes in the layout of Prophesee. Detections are a COCO result, boxes in the layout of
Prophesee with `class_confidence`, or lines of JSON as `rvtssm predict` writes them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.datasets.custom import SPEC
from rvtssm.events.labels import Boxes, read_boxes
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError

_BOXES = "_bbox.npy"
# Where the detections of a recording lie in a folder, after its name.
_IN_FOLDER = (_BOXES, ".npy", ".jsonl", "/detections.npy", "/detections.jsonl")
_NO_TIME = -(1 << 62)  # earlier than all times
_BEYOND_ANY = 1 << 53  # numbers of JSON are exact below it


@dataclass(frozen=True)
class LabelSet:
    """The labels of some recordings."""

    spec: DatasetSpec  # their classes, and the rules of scoring
    labels: Mapping[str, Labels]  # by recording
    images: Mapping[int, tuple[str, int]]  # recording and time of each image of a COCO data set; otherwise empty


def read_labels(path: Path, spec: DatasetSpec | None) -> LabelSet:
    """Return the labels in a file, or in a folder of files.

    Args:
        path: A COCO data set, a file of boxes, or a folder of those.
        spec: The dataset, whose rules decide what is scored; None: the classes of a COCO data set, and no rules.

    Raises:
        UserError: It is none of these, or its classes are not those of the dataset.
    """
    if path.suffix == ".json":
        return _read_coco(path, spec)
    if spec is None:
        raise UserError("setting.needs", name=path, found="does not name its classes", advice="add dataset=NAME")
    spec = replace(spec, downsample=1)  # boxes are in pixels of the sensor
    files = [path]
    if path.is_dir():
        files = sorted(path.glob(f"*{_BOXES}"))
    if not files or not files[0].name.endswith(".npy"):
        raise UserError("file.kind", name=path, needed=f"labels are a COCO data set (.json), *{_BOXES}, or a folder")
    labels = {
        file.name.removesuffix(".npy").removesuffix("_bbox"): _to_labels(file, read_boxes(file), spec) for file in files
    }
    return LabelSet(spec, labels, {})


def _to_labels(path: Path, boxes: Boxes, spec: DatasetSpec) -> Labels:
    """Return boxes as they are on disk as labels of the classes of a dataset; boxes of other classes are left out."""
    place = {disk_id: number for number, disk_id in enumerate(spec.disk_class_ids)}
    boxes = boxes[np.isin(boxes["class_id"], list(place))]
    classes = [place[int(disk_id)] for disk_id in boxes["class_id"]]
    ltwh = np.stack([boxes[name] for name in "xywh"], axis=1).astype(np.float32)
    if not np.isfinite(ltwh).all():
        raise UserError("file.content", name=path, found="a side of a box is not finite", advice="leave it out")
    return labels_of(ltwh, np.array(classes, np.int64), boxes["t"].astype(np.int64))


def labels_of(ltwh: np.ndarray, class_id: np.ndarray, t_us: np.ndarray, empty_us: Sequence[int] = ()) -> Labels:
    """Return boxes that belong to no window as labels, ordered by time."""
    order = np.argsort(t_us, kind="stable")
    zeros = np.zeros(len(t_us), np.int64)
    empty = np.array(sorted(empty_us), np.int64)
    return Labels(ltwh[order], class_id[order], t_us[order], zeros, zeros - 1, empty_us=empty)


def _read_json(path: Path) -> Any:
    with file_errors(path, " is no JSON"):
        return json.loads(path.read_text("utf-8"))


def _number(path: Path, name: str, value: Any) -> float:
    """Return a number of a file; raise UserError if it is text, a truth value or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _BEYOND_ANY:
        raise UserError("file.content", name=path, found=f"{name} is {value!r:.60}", needed="a number below 2^53")
    return float(value)


def _whole(path: Path, entry: Any, name: str) -> int:
    value = entry[name]
    number = _number(path, name, value)
    if not number.is_integer():
        raise UserError("file.content", name=path, found=f"{name} is {value!r:.60}", needed="a whole number")
    return int(number)


def _sides(path: Path, entry: Any, name: str) -> list[float]:
    sides = [_number(path, name, side) for side in entry[name]]
    if len(sides) != 4:
        raise UserError("file.content", name=path, found=f"{name} is {sides!r:.60}", needed="four numbers")
    return sides


def _read_coco(path: Path, spec: DatasetSpec | None) -> LabelSet:
    """Return the labels of a COCO data set.

    Images with `recording` and `t_us` are frames of recordings. Without `recording`, all belong to one; without `t_us`
    too, they are in order.
    """
    content = _read_json(path)
    with file_errors(path, " is not a COCO data set", "give images, annotations and categories", CONTENT_ERRORS):
        names = {_whole(path, category, "id"): str(category["name"]) for category in content["categories"]}
        images, annotations = content["images"], content["annotations"]
        with_times = sum("t_us" in image for image in images)
        with_recordings = sum("recording" in image for image in images)
        if with_times not in (0, len(images)) or with_recordings not in (0, with_times):
            raise UserError("file.damaged", name=path, found="some images have recording and t_us, others do not")
        if not with_times and spec is not None and spec.skip_us:
            found = f"images without t_us, and {spec.name} leaves out the first {spec.skip_us / 1e6:g} s"
            advice = "add recording and t_us to the images, or leave dataset out"
            raise UserError("file.content", name=path, found=found, advice=advice)
        places: dict[int, tuple[str, int]] = {}
        for number, image in enumerate(images, start=1):  # since labels at time 0 may be too early to be scored
            place = (path.stem, number)
            if with_times:
                place = str(image.get("recording", path.stem)), _whole(path, image, "t_us")
            places[_whole(path, image, "id")] = place
        if len(places) != len(images) or len(set(places.values())) != len(images):
            raise UserError("file.damaged", name=path, found="two images have the same id or the same time")
        spec = _coco_spec(path, spec, names, images)
        rows = [_coco_row(path, annotation, places, names, spec) for annotation in annotations]
    labels = {}
    for name in dict.fromkeys(recording for recording, _ in places.values()):
        own = [row for row in rows if row[0] == name]
        times = {t_us for recording, t_us in places.values() if recording == name}
        t_us = np.array([row[1] for row in own], np.int64)
        class_id = np.array([row[2] for row in own], np.int64)
        ltwh = np.array([row[3] for row in own], np.float32).reshape(-1, 4)
        labels[name] = labels_of(ltwh, class_id, t_us, sorted(times - set(t_us.tolist())))
    return LabelSet(spec, labels, places)


def _coco_spec(path: Path, spec: DatasetSpec | None, names: Mapping[int, str], images: Sequence[Any]) -> DatasetSpec:
    """Return the dataset of a COCO file: its categories without rules, or a named one with the same classes."""
    width = max((_whole(path, image, "width") for image in images if "width" in image), default=0)
    height = max((_whole(path, image, "height") for image in images if "height" in image), default=0)
    if spec is None:
        # No side is too small and no time too early: every box of the file is scored.
        spec = replace(SPEC, name=path.stem, height=height, width=width, min_side_px=0.0, skip_us=_NO_TIME)
        return replace(spec, class_names=tuple(names.values()), class_ids=tuple(names))
    if sorted(names.values()) != sorted(spec.class_names):
        found = f"has the categories {', '.join(names.values())}"
        needed = f"{spec.name} has {', '.join(spec.class_names)}"
        advice = "leave dataset out, or name another one"
        raise UserError("setting.conflict", name=path, found=found, needed=needed, advice=advice)
    ids = {name: number for number, name in names.items()}
    spec = replace(spec, class_ids=tuple(ids[name] for name in spec.class_names))
    if (width, height) != (spec.frame_width, spec.frame_height):  # not in pixels of the frame but of the sensor
        spec = replace(spec, downsample=1)
    return spec


def _coco_row(
    path: Path, annotation: Any, places: Mapping[int, tuple[str, int]], names: Mapping[int, str], spec: DatasetSpec
) -> tuple[str, int, int, Any]:
    """Return recording, time, class and box of an annotation."""
    if annotation.get("iscrowd") or annotation.get("ignore"):
        found = f"annotation {annotation.get('id')} is a crowd or is to be ignored, which is not scored here"
        raise UserError("file.content", name=path, found=found, advice="leave such annotations out")
    recording, t_us = _image_of(path, annotation, places)
    class_id = _class_of(path, _whole(path, annotation, "category_id"), spec.disk_class_ids, spec)
    return recording, t_us, class_id, _sides(path, annotation, "bbox")


def read_detections(path: Path, labels: LabelSet, max_age_us: int) -> dict[str, list[Detections]]:
    """Return the detections of every recording at its label times.

    Args:
        path: A COCO result, a .npy, a .jsonl, or a folder with such a file for each recording.
        labels: The labels.
        max_age_us: A label time takes the newest detections that are at most so old.

    Raises:
        UserError: It is none of these, or it fits no label time.
    """
    found: dict[str, dict[int, list[Any]]] = {name: {} for name in labels.labels}
    if path.suffix == ".json":
        _add_coco(path, labels, found)
    elif path.is_dir():
        for name in labels.labels:
            files = [path / f"{name}{end}" for end in _IN_FOLDER if (path / f"{name}{end}").is_file()]
            needed = f"one of {', '.join(f'{name}{end}' for end in _IN_FOLDER)}"
            if not files:
                raise UserError("file.missing", name=path, found=f"no boxes of the recording {name}", needed=needed)
            if len(files) > 1:
                raise UserError("file.ambiguous", name=path, found=f"{len(files)} files of {name}", needed=needed)
            _add_file(files[0], labels.spec, found[name])
    elif len(labels.labels) > 1:
        raise UserError(
            "file.kind", name=path, found=f"one file for {len(labels.labels)} recordings", advice="give a folder"
        )
    else:
        _add_file(path, labels.spec, next(iter(found.values())))
    frames = {}
    num_found = 0
    for name, by_time in found.items():
        own = labels.labels[name]
        frames[name], number = _at_labels(by_time, np.union1d(own.t_us, own.empty_us), max_age_us)
        num_found += number
        for frame in frames[name]:
            if not (np.isfinite(frame.xyxy).all() and np.isfinite(frame.score).all()):
                wrong = f"a box or a score of {name} at {frame.t_us} us is not finite"
                raise UserError("file.content", name=path, found=wrong, advice="leave it out")
    if any(found.values()) and not num_found:
        advice = "score.max_age_ms=N scores each label with the newest boxes that are at most so old"
        raise UserError("file.content", name=path, found="no box has the time of a label", advice=advice)
    return frames


def _at_labels(by_time: Mapping[int, list[Any]], times_us: np.ndarray, max_age_us: int) -> tuple[list[Detections], int]:
    """Return the detections at each label time, and at how many times there are some or a frame without any."""
    known_us = np.array(sorted(by_time), np.int64)
    frames, num_found = [], 0
    for t_us in times_us.tolist():
        newest = int(np.searchsorted(known_us, t_us, side="right")) - 1
        rows: list[Any] = []
        if newest >= 0 and t_us - known_us[newest] <= max_age_us:
            rows = by_time[int(known_us[newest])]
            num_found += 1
        boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
        score = np.array([row[1] for row in rows], np.float32)
        frames.append(Detections(boxes, score, np.array([row[2] for row in rows], np.int64), t_us))
    return frames, num_found


def _add_coco(path: Path, labels: LabelSet, found: Mapping[str, dict[int, list[Any]]]) -> None:
    """Add the boxes of a COCO result. Without images, `image_id` is the time of the only recording, as in `predict`."""
    content = _read_json(path)
    if not isinstance(content, list):
        raise UserError("file.kind", name=path, found="is not a list", needed="a COCO result is a list of boxes")
    only = next(iter(labels.labels)) if len(labels.labels) == 1 else None
    with file_errors(
        path, " is not a COCO result", "each box needs image_id, category_id, bbox and score", CONTENT_ERRORS
    ):
        for box in content:
            if labels.images:
                recording, t_us = _image_of(path, box, labels.images)
            elif only is not None:
                recording, t_us = only, _whole(path, box, "image_id")
            else:
                raise UserError("file.kind", name=path, found="a COCO result for recordings", advice="give COCO labels")
            category_id = _whole(path, box, "category_id")
            class_id = _class_of(path, category_id, labels.spec.disk_class_ids, labels.spec)
            known = labels.spec.class_names[class_id]
            if box.get("category", known) != known:
                wrong = f"category_id {category_id} is {known} in the labels and {box['category']} in a box"
                raise UserError("file.content", name=path, found=wrong, advice="give both the same ids")
            xyxy = ltwh_to_xyxy(np.array([_sides(path, box, "bbox")], np.float32))[0]
            found[recording].setdefault(t_us, []).append((xyxy, _number(path, "score", box["score"]), class_id))


def _image_of(path: Path, box: Any, images: Mapping[int, tuple[str, int]]) -> tuple[str, int]:
    """Return recording and time of the image of a box; raise UserError if there is no such image."""
    number = _whole(path, box, "image_id")
    if number not in images:
        needed = "image_id is the id of one of the images of the labels"
        raise UserError("file.content", name=path, found=f"image_id {number}", needed=needed)
    return images[number]


def _add_file(path: Path, spec: DatasetSpec, by_time: dict[int, list[Any]]) -> None:
    """Add the boxes of one recording."""
    readers: dict[str, Callable[[Path, DatasetSpec, dict[int, list[Any]]], None]] = {
        ".npy": _add_array,
        ".jsonl": _add_lines,
    }
    if path.suffix not in readers:
        raise UserError("file.kind", name=path, needed="detections are a .json, .npy or .jsonl, or a folder")
    if not path.is_file():
        raise UserError("file.missing", name=path, found="does not exist")
    readers[path.suffix](path, spec, by_time)


def _add_array(path: Path, spec: DatasetSpec, by_time: dict[int, list[Any]]) -> None:
    boxes = read_boxes(path)
    xyxy = ltwh_to_xyxy(np.stack([boxes[name] for name in "xywh"], axis=1).astype(np.float32))
    columns = boxes["t"].tolist(), xyxy, boxes["class_confidence"].tolist(), boxes["class_id"].tolist()
    for t_us, box, score, disk_id in zip(*columns, strict=True):
        by_time.setdefault(t_us, []).append((box, score, _class_of(path, disk_id, spec.disk_class_ids, spec)))


def _class_of(path: Path, asked: int | str, known: Sequence[int | str], spec: DatasetSpec) -> int:
    """Return the class of a box by its id or its name; raise UserError if the dataset has no such class."""
    if asked not in known:
        needed = f"{spec.name} has {', '.join(map(' '.join, spec.names_on_disk.items()))}"
        raise UserError("file.content", name=path, found=f"class {asked}", needed=needed)
    return known.index(asked)


def _add_lines(path: Path, spec: DatasetSpec, by_time: dict[int, list[Any]]) -> None:
    advice = "each line is {t_us, detections: [{xyxy, class, score}]}, as `rvtssm predict` writes it"
    with file_errors(path, " is not a file of boxes", advice, CONTENT_ERRORS):
        for line in path.read_text("utf-8").splitlines():
            window = json.loads(line)
            rows = by_time.setdefault(_whole(path, window, "t_us"), [])
            for box in window["detections"]:
                class_id = _class_of(path, box["class"], spec.class_names, spec)
                rows.append((_sides(path, box, "xyxy"), _number(path, "score", box["score"]), class_id))
