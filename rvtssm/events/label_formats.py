"""Parse COCO JSON, YOLO text and Pascal VOC XML into images with boxes, whose times and class ids are decided later.

Each format is read as docs/your_files.md writes it down. What is not part of it is refused, with its place in the file.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rvtssm.events.labels import number_of_track
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError

YOLO_COLUMNS = ("class", "cx", "cy", "w", "h")  # without `label_columns`
_COLUMNS = (*YOLO_COLUMNS, "x1", "y1", "x2", "y2", "confidence", "track", "time_us", "polygon", "points")
_OPEN = ("polygon", "points")  # the rest of a line
_VOC_EDGES = ("xmin", "ymin", "xmax", "ymax")
_VOC_PARTS = {"folder", "filename", "path", "source", "owner", "size", "segmented", "object", "url"}
_MOST_CLASSES = 9_999  # in YOLO text; a larger number is no class
_LARGEST_TIME_US = 1 << 53  # which numbers of JSON hold exactly
_ENCODING = "utf-8-sig"  # independent of the locale; some editors write a byte order mark first

CROWD = "crowd annotations (iscrowd) were left out"
NO_BOX = "annotations without a box were left out"
EXCHANGED = "boxes had their corners exchanged, and were read with xmin < xmax and ymin < ymax"
# Files of other tools, which are named and not read: by the root of XML, a key of the first object of JSON, or a line.
_OTHERS_XML = {"annotations": "CVAT", "dataset": "dlib"}
_OTHERS_JSON = {
    "shapes": "LabelMe",
    "_via_img_metadata": "VIA",
    "regions": "VIA",
    "objects": "Supervisely",
    "data": "Label Studio",
    "score": "COCO, but results of a detector",
    "image": "CreateML",
    "labels": "BDD100K",
}
_OTHERS_TEXT = {
    r"\d+,\s*-?\d+(,\s*-?[\d.]+){4,}": "MOT",
    r"\D\S*( -?[\d.]+){14,15}": "KITTI",
    r"(-?[\d.]+ ){8}\S*[^\d.\s]\S*( \d)?": "DOTA, with turned boxes",
}

Sides = tuple[float, float, float, float]  # left, top, width, height


@dataclass(frozen=True, slots=True)
class FoundBox:
    """One box of a label file, in pixels of its image."""

    sides: Sides
    kind: str | int  # the class: its name, or in YOLO text its number
    place: str  # in the file, for messages
    track: int = 0  # 0: none


@dataclass(slots=True)
class LabelledImage:
    """What a label file says about one image."""

    name: str  # the path of the image as the file writes it, or the path of the label file
    t_us: int | None = None
    size: tuple[Any, Any] = (None, None)  # width and height as the file gives them
    boxes: list[FoundBox] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # what was left out or read in another way


Parse = Callable[[Path, tuple[int, int], tuple[str, ...]], list[LabelledImage]]


def parse_labels(
    path: Path, size_wh: tuple[int, int], columns: Sequence[str] = (), suffix: str = ""
) -> list[LabelledImage]:
    """Return the images of a COCO, YOLO or Pascal VOC file.

    Args:
        path: The file.
        size_wh: Width and height of the images in pixels.
        columns: What the numbers of a line of YOLO text are; empty for YOLO_COLUMNS.
        suffix: A key of LABEL_PARSERS that says the format. Empty: the suffix of the file.

    Raises:
        UserError: The content does not have the form of its suffix.
    """
    parse, what, form = LABEL_PARSERS[suffix or path.suffix]
    with file_errors(path, f" cannot be read as {what}", f"it needs {form}", CONTENT_ERRORS, "labels.form"):
        try:
            return parse(path, size_wh, tuple(columns))
        except UnicodeDecodeError:
            raise UserError("labels.form", found="it is not UTF-8") from None
        except RecursionError:
            raise UserError("labels.form", found="it is nested too deeply") from None


def _refused(where: str, found: str) -> UserError:
    """Return the error for an entry that is no part of the form; the caller names the file and the form."""
    return UserError("labels.form", name=where, found=found)


def _of_tool(where: str, tool: str) -> UserError:
    """Return the error for a file of another tool."""
    return UserError("labels.other_tool", name=where, found=f"it has the form of {tool}")


def _parse_coco(path: Path, size_wh: tuple[int, int], columns: tuple[str, ...]) -> list[LabelledImage]:
    content = json.loads(path.read_text(_ENCODING))
    first = content[0] if isinstance(content, list) and content else content
    if not isinstance(first, dict):
        raise _refused("the file", "it holds no objects")
    if tool := next((tool for key, tool in _OTHERS_JSON.items() if key in first), None):
        raise _of_tool("the file", tool)
    if isinstance(content, list):
        raise _refused("the file", "it is a list, not an object")
    images: dict[str, LabelledImage] = {}
    for i, image in enumerate(_listed(content, "images")):
        where = f"image {i + 1}"
        key = _key(_of(image, "id", where))
        if key in images:
            raise _refused(where, f"its id {key} is that of another image")
        t_us = _whole_us(image["t_us"], where) if "t_us" in image else None
        size = image.get("width"), image.get("height")
        images[key] = LabelledImage(str(image.get("file_name", "")), t_us, size)
    names: dict[str, str] = {}
    for i, category in enumerate(_listed(content, "categories")):
        where = f"category {i + 1}"
        names[_key(_of(category, "id", where))] = str(_of(category, "name", where))
    for i, annotation in enumerate(_listed(content, "annotations")):
        where = f"annotation {annotation.get('id', i + 1)}"
        owner = images.get(_key(_of(annotation, "image_id", where)))
        kind = names.get(_key(_of(annotation, "category_id", where)))
        if owner is None or kind is None:
            missing = "image" if owner is None else "category"
            raise _refused(where, f"there is no {missing} with the id {annotation[f'{missing}_id']}")
        sides = _coco_sides(annotation, where)
        track = annotation.get("track_id")
        # Some tools write it among the attributes.
        if track is None and isinstance(attributes := annotation.get("attributes"), dict):
            track = attributes.get("track_id")
        if annotation.get("iscrowd"):
            owner.notes[CROWD] += 1
        elif sides is None:
            owner.notes[NO_BOX] += 1
        else:
            owner.boxes.append(FoundBox(sides, kind, f"{path}, {where}", _track(track, where)))
    return list(images.values())


def _listed(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects of a JSON file."""
    entries = _of(content, key, "the file")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _refused("the file", f'"{key}" is not a list of objects')
    return entries


def _of(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise _refused(where, f'there is no "{key}"')
    return entry[key]


def _key(number: Any) -> str:
    """Return an id as text, since some tools write numbers in one place and text in another."""
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _whole_us(t_us: Any, where: str) -> int:
    number = _number(t_us, where)
    if not number.is_integer() or abs(number) >= _LARGEST_TIME_US:
        raise _refused(where, f"t_us {t_us} is not a whole number of microseconds")
    return int(t_us)


def _number(value: Any, where: str) -> float:
    """Return a value that is a number, or a number as text."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _refused(where, f"{value!r:.40} is not a number")


def _coco_sides(annotation: Mapping[str, Any], where: str) -> Sides | None:
    """Return the box of an annotation, or the box around its polygons; None if it has neither."""
    box = annotation.get("bbox")
    polygons = annotation.get("segmentation")
    if box:
        if not isinstance(box, list) or len(box) != 4:
            raise _refused(where, f"the bbox is {box!r:.60}, not [x, y, w, h]")
        left, top, width, height = (_number(side, where) for side in box)
        return left, top, width, height
    if not isinstance(polygons, list) or not polygons:
        return None
    if not all(isinstance(polygon, list) and len(polygon) % 2 == 0 for polygon in polygons):
        raise _refused(where, "the segmentation is not lists of x, y, x, y, ...")
    return _around([_number(number, where) for polygon in polygons for number in polygon])


def _track(track: Any, where: str) -> int:
    try:
        return number_of_track(track)
    except (ValueError, TypeError, OverflowError):
        raise _refused(where, f"the track {track!r:.40} is not a whole number") from None


def _around(points: Sequence[float]) -> Sides:
    """Return the box around the points x, y, x, y, ..."""
    x, y = points[::2], points[1::2]
    return min(x), min(y), max(x) - min(x), max(y) - min(y)


def are_columns(value: Any) -> bool:
    """Return whether a value says what the numbers of a line of YOLO text are: a class, and a box in one form."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        return False
    is_known = set(value) <= set(_COLUMNS) and len(set(value)) == len(value) and "class" in value
    forms = [set(form) <= set(value) for form in (("cx", "cy", "w", "h"), ("x1", "y1", "x2", "y2"), ("polygon",))]
    return is_known and sum(forms) == 1 and not any(name in _OPEN for name in value[:-1])


def _parse_yolo(path: Path, size_wh: tuple[int, int], columns: tuple[str, ...]) -> list[LabelledImage]:
    columns = columns or YOLO_COLUMNS
    images: dict[int | None, LabelledImage] = {}
    if "time_us" not in columns:
        images[None] = LabelledImage(str(path))
    for number, line in enumerate(path.read_text(_ENCODING).splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        values = _columns_of(line.split(), columns, where)
        kind = values["class"][0]
        if not kind.is_integer() or not 0 <= kind <= _MOST_CLASSES:
            raise _refused(where, f"the class {kind:g} is not a whole number from 0 to {_MOST_CLASSES}")
        t_us = _whole_us(values["time_us"][0], where) if "time_us" in values else None
        track = _track(values.get("track", [0])[0], where)
        image = images.setdefault(t_us, LabelledImage(str(path), t_us))
        image.boxes.append(FoundBox(_yolo_sides(values, size_wh, where), int(kind), f"{path}, {where}", track))
    return list(images.values())


def _columns_of(words: list[str], columns: tuple[str, ...], where: str) -> dict[str, list[float]]:
    """Return the numbers of each column of a line."""
    if tool := next((tool for form, tool in _OTHERS_TEXT.items() if re.fullmatch(form, " ".join(words))), None):
        raise _of_tool(where, tool)
    num_fixed = len(columns) - (columns[-1] in _OPEN)
    rest = len(words) - num_fixed
    fits_open = {"polygon": rest >= 6 and rest % 2 == 0, "points": rest >= 2}
    if not fits_open.get(columns[-1], rest == 0):
        known = {6: "[class, cx, cy, w, h, confidence] or [time_us, class, cx, cy, w, h]"}
        example = known.get(len(words), "[class, polygon] or [class, cx, cy, w, h, points]")
        advice = ""
        if len(words) > 5:
            advice = f"; if they are others, say so in dataset.yaml, as in label_columns: {example}"
        raise _refused(where, f"{len(words)} numbers, not {' '.join(columns)}{advice}")
    numbers = [_number(word, where) for word in words]
    named = {name: [number] for name, number in zip(columns[:num_fixed], numbers, strict=False)}
    return named | ({columns[-1]: numbers[num_fixed:]} if columns[-1] in _OPEN else {})


def _yolo_sides(values: Mapping[str, list[float]], size_wh: tuple[int, int], where: str) -> Sides:
    """Return the box of a line in pixels; its numbers are fractions of the image."""
    if "polygon" in values:
        left, top, w, h = _around(values["polygon"])
    elif "x1" in values:
        left, top, right, bottom = (values[name][0] for name in ("x1", "y1", "x2", "y2"))
        w, h = right - left, bottom - top
    else:
        cx, cy, w, h = (values[name][0] for name in ("cx", "cy", "w", "h"))
        left, top = cx - w / 2, cy - h / 2
    if max(left, top, w, h) > 2:
        raise _refused(where, "YOLO text has fractions of the image, from 0 to 1, not pixels")
    width, height = size_wh
    return left * width, top * height, w * width, h * height


def _parse_voc(path: Path, size_wh: tuple[int, int], columns: tuple[str, ...]) -> list[LabelledImage]:
    root = ElementTree.parse(path).getroot()
    if root.tag in _OTHERS_XML:
        raise _of_tool(f"<{root.tag}>", _OTHERS_XML[root.tag])
    if root.tag != "annotation":
        raise _refused("the root", f"it is <{root.tag}>, not <annotation> of Pascal VOC")
    if others := [part.tag for part in root if part.tag not in _VOC_PARTS]:
        raise _refused(f"<{others[0]}>", "Pascal VOC has no such element")
    image = LabelledImage(str(path), None, (root.findtext("size/width"), root.findtext("size/height")))
    for i, item in enumerate(root.iter("object"), 1):
        where = f"object {i}"
        name = _text(item, "name", where)
        left, top, right, bottom = (_number(_text(item, f"bndbox/{edge}", where), where) for edge in _VOC_EDGES)
        if left > right or top > bottom:
            image.notes[EXCHANGED] += 1
        sides = min(left, right), min(top, bottom), abs(right - left), abs(bottom - top)
        track = _track(item.findtext("track_id"), where)
        image.boxes.append(FoundBox(sides, name, f"{path}, {where}", track))
    return [image]


def _text(item: ElementTree.Element, place: str, where: str) -> str:
    """Return the text of an element. Raise UserError if it is missing or empty."""
    text = (item.findtext(place) or "").strip()
    if not text:
        raise _refused(where, f"there is no {place.rpartition('/')[2]}")
    return text


# by suffix: the parser, what it reads, and what a file needs
LABEL_PARSERS: dict[str, tuple[Parse, str, str]] = {
    ".json": (
        _parse_coco,
        "COCO JSON",
        'images with "id" and "t_us" (microseconds) or "file_name", annotations with "bbox" [x, y, w, h], categories '
        "with names",
    ),
    ".txt": (_parse_yolo, "boxes as YOLO writes them", "class cx cy w h in every line, coordinates from 0 to 1"),
    ".xml": (_parse_voc, "Pascal VOC XML", f"in every object a name and a bndbox with {', '.join(_VOC_EDGES)}"),
}
