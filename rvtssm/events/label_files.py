"""Read boxes from the label files of common tools: Prophesee's arrays, COCO JSON, YOLO text and Pascal VOC XML.

All of them become arrays of BOX_DTYPE with the class ids of the dataset, so that they are all cleaned by the same
rules. YOLO text has one box per line, `class cx cy w h`, in fractions of the sensor size, optionally after a time.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from rvtssm.events.labels import BOX_DTYPE, Boxes, read_boxes
from rvtssm.records import DatasetSpec
from rvtssm.system.file_errors import file_errors
from rvtssm.system.user_error import UserError

_VOC_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MOST_CLASSES = 9_999  # in YOLO text; a larger number is the time of a line that was cut off
_LARGEST_TIME_US = 1 << 61
_ENCODING = "utf-8-sig"  # independent of the locale; some editors write a byte order mark first
_ROUNDING = 1e-3  # tolerance for numbers written with few digits

Row = tuple[int, float, float, float, float, int]  # t (us), left, top, width, height (px), class id on disk


def read_label_file(path: Path | str, spec: DatasetSpec, end_us: int | None = None) -> Boxes:
    """Return all boxes of a file in order of time. The suffix of the file decides its format.

    Args:
        path: A file with a suffix in LABEL_READERS.
        spec: The dataset, which gives the classes and the size of the sensor.
        end_us: The time for labels that have none.

    Returns:
        (N,) of BOX_DTYPE.

    Raises:
        UserError: The suffix is unknown, the content does not fit the suffix, or a class is unknown.
    """
    path = Path(path)
    if path.suffix not in LABEL_READERS:
        raise UserError(f"{path} is not a supported label file; choose from {', '.join(LABEL_READERS)}")
    if path.is_dir():
        raise UserError(f"{path} is a folder; put a label file in its place")
    with file_errors(path):
        boxes = LABEL_READERS[path.suffix](path, spec, end_us)
    if path.suffix in (".npy", ".txt"):  # the other formats have class names and were checked by their readers
        is_known = np.isin(boxes["class_id"], spec.disk_class_ids)
        _check_classes(path, spec, Counter(map(str, boxes["class_id"][~is_known].tolist())), len(boxes))
    return boxes[np.argsort(boxes["t"], kind="stable")]


def _read_coco(path: Path, spec: DatasetSpec, end_us: int | None) -> Boxes:
    """Read COCO JSON of one recording. Every image gives the time of its labels as `t_us`."""
    try:
        content = json.loads(path.read_text(_ENCODING))
        times = {image["id"]: _whole(image["t_us"]) for image in content["images"]}
        if len(times) < len(content["images"]):
            raise UserError("two images have the same id")
        names = {category["id"]: str(category["name"]) for category in content["categories"]}
        rows = [
            (times[found["image_id"]], *found["bbox"], _disk_id(names[found["category_id"]], spec))
            for found in content["annotations"]
            if not found.get("iscrowd") and names[found["category_id"]] in spec.class_names
        ]
        boxes = _to_boxes(rows)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        wanted = 'images with "id" and "t_us" (microseconds), annotations with "bbox" [x, y, w, h], categories by name'
        raise _damaged(path, f"COCO JSON ({_said(error)})", wanted) from None
    found = Counter(names[each["category_id"]] for each in content["annotations"] if not each.get("iscrowd"))
    _check_classes(path, spec, found, found.total())
    for image in content["images"]:
        _check_sensor(path, image.get("width"), image.get("height"), spec)
    if content["annotations"] and not set(names.values()) & set(spec.class_names):
        raise UserError(
            f"{path} has the categories {', '.join(names.values())}, none of which is a class of {spec.name} "
            f"({', '.join(spec.class_names)}); use the names of the labels as class names"
        )
    return boxes


def _read_yolo(path: Path, spec: DatasetSpec, end_us: int | None) -> Boxes:
    """Read text with `[t_us] class cx cy w h` on every line, coordinates as fractions of the sensor size."""
    rows: list[Row] = []
    try:
        lines = path.read_text(_ENCODING).splitlines()
    except UnicodeDecodeError as error:
        raise _damaged(path, f"text ({_said(error)})", "one box per line") from None
    num_columns = max([len(line.split()) for line in lines], default=0)
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            has_time = len(words) == 6
            if has_time != (num_columns == 6):
                raise UserError("some lines have a time and some do not")
            t_us = int(words.pop(0)) if has_time else _known(end_us)
            class_id = int(words[0])
            if not 0 <= class_id <= _MOST_CLASSES:
                raise UserError(f"class {class_id}")
            if abs(t_us) >= _LARGEST_TIME_US:
                raise UserError(f"time {t_us}")
            cx, cy, w, h = (float(word) for word in words[1:])
        except ValueError as error:
            form = "[time in us] class cx cy w h, coordinates from 0 to 1"
            raise _damaged(path, f"boxes as YOLO writes them (line {number}: {_said(error)})", form) from None
        if not (min(cx, cy, w, h) >= -_ROUNDING and max(cx, cy, w, h) <= 1 + _ROUNDING):
            raise UserError(
                f"{path} line {number} has a box of {cx:g} {cy:g} {w:g} {h:g}, outside 0 to 1; "
                "YOLO text has fractions of the sensor size; divide by its width and height"
            )
        left, top = (cx - w / 2) * spec.width, (cy - h / 2) * spec.height
        rows.append((t_us, left, top, w * spec.width, h * spec.height, class_id))
    return _to_boxes(rows)


def _read_voc(path: Path, spec: DatasetSpec, end_us: int | None) -> Boxes:
    """Read XML with the labels of one frame at the end of its recording. Edges are pixels counted from 0."""
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    try:
        root = ElementTree.parse(path).getroot()
        for found in root.iter("object"):
            name = (found.findtext("name") or "").strip()
            x1, y1, x2, y2 = (float(found.findtext(f"bndbox/{edge}") or "") for edge in _VOC_EDGES)
            counts[name] += 1
            if name in spec.class_names:
                rows.append((_known(end_us), x1, y1, x2 - x1, y2 - y1, _disk_id(name, spec)))
        boxes = _to_boxes(rows)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError means an unknown encoding
        wanted = f"in every object a name and a bndbox with {', '.join(_VOC_EDGES)}"
        raise _damaged(path, f"Pascal VOC XML ({_said(error)})", wanted) from None
    _check_classes(path, spec, counts, counts.total())
    _check_sensor(path, root.findtext("size/width"), root.findtext("size/height"), spec)
    return boxes


LABEL_READERS: dict[str, Callable[[Path, DatasetSpec, int | None], Boxes]] = {
    ".npy": lambda path, spec, end_us: read_boxes(path),
    ".json": _read_coco,
    ".txt": _read_yolo,
    ".xml": _read_voc,
}


def _check_classes(path: Path, spec: DatasetSpec, counts: Counter[str], num_boxes: int) -> None:
    """Raise UserError if boxes have a class, by name or number, that the dataset neither has nor ignores.

    A dataset that ignores all other classes still refuses one whose name differs from its own only in capitals.
    """
    if spec.ignored_classes is None:
        own = {name.casefold(): name for name in spec.class_names}
        for name in counts:
            if name not in spec.class_names and name.casefold() in own:
                raise UserError(
                    f"{path} has boxes of the class {name}, but the dataset says {own[name.casefold()]}; write the "
                    "name in the same way in both"
                )
        return
    unknown = {name: count for name, count in counts.items() if name not in (*spec.class_names, *spec.ignored_classes)}
    if unknown:
        listed = ", ".join(f"{name} ({count} boxes)" for name, count in unknown.items())
        raise UserError(
            f"{path}: {sum(unknown.values())} of {num_boxes} boxes are of classes that the dataset does not name: "
            f"{listed}; add them to classes in dataset.yaml, or to ignored_classes to leave them out"
        )


def _check_sensor(path: Path, width: Any, height: Any, spec: DatasetSpec) -> None:
    """Raise UserError if the labels give a picture size other than the sensor's. A size of 0 counts as not given."""
    try:
        size = float(width), float(height)
    except (TypeError, ValueError):
        return
    if 0 not in size and size != (spec.width, spec.height):
        raise UserError(
            f"{path} labels pictures of {size[0]:g}x{size[1]:g} (width x height) pixels, but the sensor of "
            f"{spec.name} has {spec.width}x{spec.height}; choose the size that fits"
        )


def _disk_id(name: str, spec: DatasetSpec) -> int:
    return spec.disk_class_ids[spec.class_names.index(name)]


def _whole(t_us: Any) -> int:
    if isinstance(t_us, float) and not t_us.is_integer():
        raise UserError(f"t_us {t_us} is not a whole number of microseconds")
    return int(t_us)


def _known(end_us: int | None) -> int:
    if end_us is None:
        raise UserError("it has no time")
    return end_us


def _to_boxes(rows: list[Any]) -> Boxes:
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for name, column in zip(("t", "x", "y", "w", "h", "class_id"), zip(*rows, strict=True), strict=bool(rows)):
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which is checked below
            boxes[name] = column
    boxes["class_confidence"], boxes["still_us"] = 1, -1
    if not all(np.isfinite(boxes[name]).all() for name in "xywh"):
        raise UserError("a box is not finite")
    return boxes


def _said(error: Exception) -> str:
    """Return the message of an error on one line."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())


def _damaged(path: Path, what: str, wanted: str) -> UserError:
    return UserError(f"{path} cannot be read as {what}; it needs {wanted}")
