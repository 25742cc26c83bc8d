"""Parse COCO JSON, YOLO text and Pascal VOC XML into images with boxes, whose times and class ids are decided later.

YOLO text has one box per line, `class cx cy w h` in fractions of the image, optionally after a time in microseconds or
before a confidence, a track or both; polygons become the boxes around them.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rvtssm.events.labels import number_of_track
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.user_error import UserError, key_of

_VOC_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MOST_CLASSES = 9_999  # in YOLO text; a larger number is the time of a line that was cut off
_LARGEST_TIME_US = 1 << 61
_ENCODING = "utf-8-sig"  # independent of the locale; some editors write a byte order mark first
_ROUNDING = 1e-3  # tolerance for numbers written with few digits

CROWD = "crowd annotations (iscrowd) were left out"
NO_BOX = "annotations without a box were left out"
EXCHANGED = "boxes had their corners exchanged, and were read with xmin < xmax and ymin < ymax"

Sides = tuple[float, float, float, float]  # left, top, width, height


@dataclass(frozen=True, slots=True)
class FoundBox:
    """One box of a label file, in pixels of its image."""

    sides: Sides
    kind: str | int  # the class: its name, or in YOLO text its number
    track: int = 0  # 0: none


@dataclass(slots=True)
class LabelledImage:
    """What a label file says about one image."""

    name: str  # the path of the image as the file writes it, or the path of the label file
    t_us: int | None = None
    size: tuple[Any, Any] = (None, None)  # width and height as the file gives them
    boxes: list[FoundBox] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # what was left out or read in another way


Parse = Callable[[Path, tuple[int, int]], list[LabelledImage]]  # a file, width and height of its images


def parse_labels(path: Path, size_wh: tuple[int, int], suffix: str = "") -> list[LabelledImage]:
    """Return the images of a COCO, YOLO or Pascal VOC file.

    Args:
        path: The file.
        size_wh: Width and height of the images in pixels, for fractions.
        suffix: A key of LABEL_PARSERS that says the format. Empty: the suffix of the file.

    Raises:
        UserError: The content does not fit the suffix.
    """
    parse, what, form = LABEL_PARSERS[suffix or path.suffix]
    with file_errors(path, f" cannot be read as {what}", f"it needs {form}", CONTENT_ERRORS, "labels.content"):
        stat = path.stat()
        try:
            return _parsed(parse, path, size_wh, stat.st_mtime_ns, stat.st_size)
        except UnicodeDecodeError:
            raise UserError("labels.not_utf8", "it is not UTF-8; save it as UTF-8") from None
        except KeyError as error:
            raise LookupError(f"no {error}") from None


@functools.lru_cache(maxsize=2)  # many recordings may share one large file
def _parsed(parse: Parse, path: Path, size_wh: tuple[int, int], *version: int) -> list[LabelledImage]:
    return parse(path, size_wh)


def _parse_coco(path: Path, size_wh: tuple[int, int]) -> list[LabelledImage]:
    content = json.loads(path.read_text(_ENCODING))
    images: dict[str, LabelledImage] = {}
    for image in content["images"]:
        t_us = _whole_us(image["t_us"]) if "t_us" in image else None
        size = image.get("width"), image.get("height")
        images[_key(image["id"])] = LabelledImage(str(image.get("file_name", "")), t_us, size)
    if len(images) < len(content["images"]):
        raise UserError("labels.image_twice", "two images have the same id")
    names = {_key(category["id"]): str(category["name"]) for category in content["categories"]}
    for annotation in content["annotations"]:
        image = images[_key(annotation["image_id"])]
        sides = _coco_sides(annotation)
        if annotation.get("iscrowd"):
            image.notes[CROWD] += 1
            continue
        if sides is None:
            image.notes[NO_BOX] += 1
            continue
        track = annotation.get("track_id", (annotation.get("attributes") or {}).get("track_id"))
        image.boxes.append(FoundBox(sides, names[_key(annotation["category_id"])], number_of_track(track)))
    return list(images.values())


def _key(number: Any) -> str:
    """Return an id as text, since some tools write numbers in one place and text in another."""
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _whole_us(t_us: Any) -> int:
    if isinstance(t_us, float) and not t_us.is_integer():
        raise UserError("labels.time_not_whole", f"t_us {t_us} is not a whole number of microseconds")
    return int(t_us)


def _coco_sides(annotation: Mapping[str, Any]) -> Sides | None:
    """Return the box of an annotation, or the box around its polygons; None if it has neither."""
    box, polygons = annotation.get("bbox"), annotation.get("segmentation")
    if box:
        if not isinstance(box, list) or len(box) != 4:
            raise UserError(
                "labels.bbox", f"annotation {annotation.get('id')} has the bbox {box!r:.60}, not [x, y, w, h]"
            )
        left, top, width, height = map(float, box)
        return left, top, width, height
    if not isinstance(polygons, list) or not polygons:
        return None
    points = [float(number) for polygon in polygons for number in polygon]
    return _around(points)


def _around(points: Sequence[float]) -> Sides:
    """Return the box around the points x, y, x, y, ..."""
    x, y = points[::2], points[1::2]
    return min(x), min(y), max(x) - min(x), max(y) - min(y)


def _parse_yolo(path: Path, size_wh: tuple[int, int]) -> list[LabelledImage]:
    lines = [line.split() for line in path.read_text(_ENCODING).splitlines()]
    numbered = [(number, words) for number, words in enumerate(lines, 1) if words]
    has_times = _has_times([words for _, words in numbered])
    images: dict[int | None, LabelledImage] = {}
    if not has_times:
        images[None] = LabelledImage(str(path))
    for number, words in numbered:
        try:
            t_us = None
            if has_times:
                t_us, words = int(words[0]), words[1:]
            if t_us is not None and abs(t_us) >= _LARGEST_TIME_US:
                raise UserError("labels.time_too_large", f"time {t_us}")
            box = _yolo_box(words, size_wh)
        except ValueError as error:
            raise UserError(key_of(error, "labels.content"), f"line {number}: {error}") from None
        images.setdefault(t_us, LabelledImage(str(path), t_us)).boxes.append(box)
    return list(images.values())


def _has_times(lines: Sequence[list[str]]) -> bool:
    """Return whether all lines begin with a time. A sixth word is otherwise a confidence or a track."""
    six = [words for words in lines if len(words) == 6]
    is_timed = all(words[0].lstrip("-").isdigit() and words[1].isdigit() for words in six)
    is_boxed = all(_is_class(words[0]) and all(map(_is_fraction, words[1:5])) for words in six)
    if six and is_timed and is_boxed:  # whole numbers at the edges of the image
        is_timed = all(_is_inside(words[2:6]) for words in six)
        is_boxed = all(_is_inside(words[1:5]) for words in six)
        if is_timed == is_boxed:
            raise UserError(
                "labels.ambiguous_line",
                f"the line `{' '.join(six[0])}` can be `time class cx cy w h` or `class cx cy w h confidence`; write "
                "`class cx cy w h`",
            )
    if is_boxed:
        return False
    if len(six) < len(lines) or not is_timed:
        raise UserError("labels.some_times", "some lines have a time and some do not")
    return True


def _number(word: str) -> float:
    """Return the number that a word is; NaN if it is none."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _is_class(word: str) -> bool:
    return _number(word).is_integer() and 0 <= _number(word) <= _MOST_CLASSES


def _is_fraction(word: str) -> bool:
    return -_ROUNDING <= _number(word) <= 1 + _ROUNDING


def _is_inside(words: Sequence[str]) -> bool:
    """Return whether a box cx, cy, w, h lies inside the image."""
    if not all(map(_is_fraction, words)):
        return False
    cx, cy, w, h = map(float, words)
    return all(half - at < _ROUNDING and at + half < 1 + _ROUNDING for at, half in ((cx, w / 2), (cy, h / 2)))


def _yolo_box(words: Sequence[str], size_wh: tuple[int, int]) -> FoundBox:
    """Return the box of `class cx cy w h[ confidence][ track]` or `class x y x y x y ...`, in fractions."""
    number, *rest = map(float, words)
    if not _is_class(words[0]):
        raise UserError("labels.class_number", f"class {words[0]}")
    track = number_of_track(rest[-1]) if len(rest) in (5, 6) and words[-1].lstrip("-").isdigit() else 0
    is_polygon = len(rest) >= 6 and len(rest) % 2 == 0 and not track
    if len(rest) < 4 or (len(rest) > 6 and not is_polygon):
        raise UserError("labels.numbers_per_line", f"{len(words)} numbers")
    shape = rest
    if not is_polygon:
        shape = rest[:4]
    if not (min(shape) >= -_ROUNDING and max(shape) <= 1 + _ROUNDING):
        numbers = " ".join(f"{side:g}" for side in shape)
        raise UserError(
            "labels.not_fractions",
            f"a box of {numbers}, outside 0 to 1; YOLO text has fractions of the sensor size, divide by its width and "
            "height",
        )
    if is_polygon:
        left, top, w, h = _around(shape)
    else:
        cx, cy, w, h = shape
        left, top = cx - w / 2, cy - h / 2
    width, height = size_wh
    return FoundBox((left * width, top * height, w * width, h * height), int(number), track)


def _parse_voc(path: Path, size_wh: tuple[int, int]) -> list[LabelledImage]:
    root = ElementTree.parse(path).getroot()
    image = LabelledImage(str(path), None, (root.findtext("size/width"), root.findtext("size/height")))
    for item in root.iter("object"):
        edges = [float(item.findtext(f"bndbox/{edge}") or "") for edge in _VOC_EDGES]
        left, top, right, bottom = edges
        if left > right or top > bottom:
            image.notes[EXCHANGED] += 1
        sides = min(left, right), min(top, bottom), abs(right - left), abs(bottom - top)
        name = (item.findtext("name") or "").strip()
        image.boxes.append(FoundBox(sides, name, number_of_track(item.findtext("track_id"))))
    return [image]


# by suffix: the parser, what it reads, and what a file needs
LABEL_PARSERS: dict[str, tuple[Parse, str, str]] = {
    ".json": (
        _parse_coco,
        "COCO JSON",
        'images with "id" and "t_us" (microseconds) or "file_name", annotations with "bbox" [x, y, w, h], categories '
        "with names",
    ),
    ".txt": (_parse_yolo, "boxes as YOLO writes them", "[time in us] class cx cy w h, coordinates from 0 to 1"),
    ".xml": (_parse_voc, "Pascal VOC XML", f"in every object a name and a bndbox with {', '.join(_VOC_EDGES)}"),
}
