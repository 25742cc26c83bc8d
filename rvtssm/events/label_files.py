"""Read boxes from the label files of common tools: Prophesee's arrays, COCO JSON, YOLO text and Pascal VOC XML.

A recording has a file of its own, a file for each labelled frame, or a part of a COCO file of several recordings. All
become arrays of BOX_DTYPE with the class ids of the dataset, so that they are all cleaned by the same rules. An
image without objects becomes an entry of `nothing_at`.

The name of an image says the recording: a folder of the path or the beginning of the file name, as in
`walk/frame_0010.png` or `walk_0010.txt`. The number at its end is that of a frame, or without a rate of frames a time
in microseconds.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.label_formats import LABEL_PARSERS, LabelledImage, parse_labels
from rvtssm.events.labels import BOX_DTYPE, Boxes, find_nothing, nothing_at, read_boxes
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError, said_of

# Roboflow writes `walk_0010_png.rf.0f3a.jpg`.
_EXPORTED = re.compile(r"_(?:png|jpe?g|bmp)\.rf\.[0-9a-zA-Z]+$")
_SHORTEST_US = 1000  # numbers of images closer than this are not times in microseconds
LABEL_SUFFIXES = (".npy", *LABEL_PARSERS)
CORNERS = "boxes reach past the right or bottom edge; are they x1, y1, x2, y2 instead of x, y, w, h?"
FROM_ONE = "labelled images are numbered from 1, so the number 1 is the frame at time 0"


@dataclass(frozen=True, slots=True)
class LabelFiles:
    """Where the labels of one recording are."""

    recording: str
    paths: tuple[Path, ...]  # one file, or one for each labelled frame
    is_per_frame: bool = False
    is_from_one: bool = False  # per frame: whether the first frame has the number 1
    sharing: tuple[str, ...] = ()  # names of all recordings whose labels are in the file; empty: only this one
    tells_strangers: bool = False  # whether the notes of this recording count images that belong to no recording

    @property
    def need_end(self) -> bool:
        """Whether labels may have no time other than the end of the recording."""
        return not self.is_per_frame and self.paths[0].suffix in (".txt", ".xml")

    def read(self, spec: DatasetSpec, end_us: int | None = None) -> tuple[Boxes, Counter[str]]:
        """Return all boxes in order of time, and how many entries were left out or read in another way, by reason.

        Args:
            spec: The dataset, which gives the classes, the size of the sensor and the rate of frames.
            end_us: The time for labels that have none.

        Returns:
            (N,) of BOX_DTYPE, and the counts.

        Raises:
            UserError: A suffix is unknown, the content does not fit the suffix, or a class is unknown.
        """
        path = self.paths[0]
        if path.suffix not in LABEL_SUFFIXES:
            raise UserError(
                "labels.suffix", f"{path} is not a supported label file; choose from {', '.join(LABEL_SUFFIXES)}"
            )
        if path.is_dir():
            raise UserError("labels.is_folder", f"{path} is a folder; put a label file in its place")
        if path.suffix == ".npy":
            boxes, notes = read_boxes(path), Counter[str]()
            boxes["t"] += spec.label_offset_us or 0
            own = boxes["class_id"][~find_nothing(boxes)]
            _check_classes(path, spec, Counter(own.tolist()))
        else:
            images, strangers = self._images(spec)
            _check_images(path, images, spec)
            boxes, notes = self._boxes(images, spec, end_us)
            notes += strangers
        return boxes[np.argsort(boxes["t"], kind="stable")], notes

    def _images(self, spec: DatasetSpec) -> tuple[list[LabelledImage], Counter[str]]:
        """Return the labelled images of the recording, and how many images of a shared file belong to no recording."""
        images = []
        for path in self.paths:
            images += parse_labels(path, (spec.width, spec.height))
        if not self.sharing:
            return images, Counter()
        names = RecordingNames(self.sharing)
        placed = [(image, names.split(image_stem(image.name))) for image in images]
        if images and not any(place for _, place in placed):
            raise UserError(
                "labels.images_of_no_recording",
                f"{self.paths[0]} has images such as {images[0].name or 'one without file_name'}, whose names contain "
                f"no recording ({', '.join(self.sharing[:3])}, ...); begin file_name with the name of the recording",
            )
        strangers = [image for image, place in placed if place is None]
        notes: Counter[str] = Counter()
        if strangers and self.tells_strangers:
            example = strangers[0].name or "one without file_name"
            notes[f"images, such as {example}, contain no name of a recording and were left out"] = len(strangers)
        return [image for image, place in placed if place is not None and place[0] == self.recording], notes

    def _boxes(
        self, images: Sequence[LabelledImage], spec: DatasetSpec, end_us: int | None
    ) -> tuple[Boxes, Counter[str]]:
        times_us, is_from_one = self._times_us(images, spec, end_us)
        notes = sum((image.notes for image in images), Counter[str]())
        if is_from_one:
            notes[FROM_ONE] += len(images)
        names: tuple[str | int, ...] = (*spec.disk_class_ids, *spec.class_names)  # YOLO text has numbers
        ids = dict(zip(names, 2 * spec.disk_class_ids, strict=True))
        rows, empty_us = [], []
        for image, t_us in zip(images, times_us, strict=True):
            known = [box for box in image.boxes if box.kind in ids]
            rows += [(t_us, *box.sides, ids[box.kind], box.track) for box in known]
            if not known and not image.notes:
                empty_us.append(t_us)
        boxes = _to_boxes(self.paths[0], rows)
        if num_corners := _num_corners(boxes, spec):
            notes[CORNERS] += num_corners
        empty = nothing_at(np.setdiff1d(np.array(empty_us, np.int64), boxes["t"]))
        empty["class_id"] = spec.disk_class_ids[0]
        return np.concatenate([boxes, empty]), notes

    def _times_us(
        self, images: Sequence[LabelledImage], spec: DatasetSpec, end_us: int | None
    ) -> tuple[list[int], bool]:
        """Return the time of each image, and whether images are numbered from 1. `end_us` is not moved."""
        timeless, moved_us = [image for image in images if image.t_us is None], spec.label_offset_us or 0
        if not timeless:
            return [(image.t_us or 0) + moved_us for image in images], False
        path = self.paths[0]
        if self.need_end:
            if end_us is None:
                raise UserError("labels.no_time", f"{path} cannot be read: it has no time")
            return [end_us] * len(images), False
        numbers = [frame_number(image_stem(image.name)) for image in timeless]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            name = timeless[numbers.index(None)].name
            raise UserError(
                "labels.image_without_time",
                f'{path} has an image without a time ({name or "it has no file_name"}); give it "t_us" (microseconds), '
                "or end its name in the number of the frame",
            )
        is_from_one = spec.label_fps > 0 and (self.is_from_one if self.is_per_frame else counts_from_one(known))
        with said_of(path):
            times_us = iter(frame_times_us(known, spec.label_fps, is_from_one))
        found_us = [next(times_us) if image.t_us is None else image.t_us for image in images]
        return [t_us + moved_us for t_us in found_us], is_from_one


def read_label_file(path: Path | str, spec: DatasetSpec, end_us: int | None = None) -> Boxes:
    """Return all boxes of a file of one recording in order of time, see `LabelFiles.read`.

    Args:
        path: A file with a suffix in LABEL_SUFFIXES.
        spec: The dataset, which gives the classes and the size of the sensor.
        end_us: The time for labels that have none.

    Returns:
        (N,) of BOX_DTYPE.
    """
    return LabelFiles("", (Path(path),)).read(spec, end_us)[0]


def _check_images(path: Path, images: Sequence[LabelledImage], spec: DatasetSpec) -> None:
    counts = Counter(box.kind for image in images for box in image.boxes)
    _check_classes(path, spec, counts)
    for size in {tuple(map(str, image.size)): image.size for image in images}.values():
        _check_sensor(path, *size, spec)


def _check_classes(path: Path, spec: DatasetSpec, counts: Counter[Any]) -> None:
    """Raise UserError if boxes have a class, by name or number, that the dataset neither has nor ignores.

    A dataset that ignores all other classes still refuses one whose name differs from its own only in capitals, and
    labels that have none of its classes.
    """
    known = {*spec.class_names, *spec.disk_class_ids}
    if spec.ignored_classes is None:
        own = {name.casefold(): name for name in spec.class_names}
        names = [name for name in counts if isinstance(name, str)]
        for name in names:
            if name not in known and name.casefold() in own:
                raise UserError(
                    "labels.class_spelling",
                    f"{path} has boxes of the class {name}, but the dataset says {own[name.casefold()]}; write the "
                    "name in the same way in both",
                )
        if names and not known.intersection(names):
            raise UserError(
                "labels.other_classes",
                f"{path} has the categories {', '.join(names)}, none of which is a class of {spec.name} "
                f"({', '.join(spec.class_names)}); use the names of the labels as class names",
            )
        return
    known |= {kind for kind in counts if str(kind) in spec.ignored_classes}
    if unknown := {kind: count for kind, count in counts.items() if kind not in known}:
        listed = ", ".join(f"{kind} ({count} boxes)" for kind, count in unknown.items())
        raise UserError(
            "labels.unnamed_classes",
            f"{path}: {sum(unknown.values())} of {counts.total()} boxes are of classes that the dataset does not name: "
            f"{listed}; add them to classes in dataset.yaml, or to ignored_classes to leave them out",
        )


def _check_sensor(path: Path, width: Any, height: Any, spec: DatasetSpec) -> None:
    """Raise UserError if the labels give a picture size other than the sensor's. A size of 0 counts as not given."""
    try:
        size = float(width), float(height)
    except (TypeError, ValueError):
        return
    if 0 not in size and size != (spec.width, spec.height):
        raise UserError(
            "labels.picture_size",
            f"{path} labels pictures of {size[0]:g}x{size[1]:g} (width x height) pixels, but the sensor of "
            f"{spec.name} has {spec.width}x{spec.height}; choose the size that fits",
        )


def _num_corners(boxes: Boxes, spec: DatasetSpec) -> int:
    """Return how many boxes reach past an edge, if more than a quarter do and all could be two corners; otherwise 0."""
    is_over = (boxes["x"] + boxes["w"] > spec.width + 1) | (boxes["y"] + boxes["h"] > spec.height + 1)
    may_be_corners = np.all((boxes["w"] > boxes["x"]) & (boxes["h"] > boxes["y"]))
    num_over = int(np.count_nonzero(is_over))
    if may_be_corners and 4 * num_over > len(boxes):
        return num_over
    return 0


def _to_boxes(path: Path, rows: Sequence[tuple[Any, ...]]) -> Boxes:
    boxes = np.zeros(len(rows), BOX_DTYPE)
    columns = zip(*rows, strict=True)
    for name, column in zip(("t", "x", "y", "w", "h", "class_id", "track_id"), columns, strict=bool(rows)):
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which is checked below
            boxes[name] = column
    boxes["class_confidence"], boxes["still_us"] = 1, -1
    if not all(np.isfinite(boxes[name]).all() for name in "xywh"):
        raise UserError("labels.not_finite", f"{path} cannot be read: a box is not finite")
    return boxes


def image_stem(name: str) -> str:
    """Return the path of an image without suffix, with / between folders; tools on Windows write a backslash."""
    path = name.replace("\\", "/")
    folder, _, file = path.rpartition("/")
    stem = re.sub(r"\.[A-Za-z]\w*$", "", file)
    return f"{folder}/{_EXPORTED.sub('', stem)}".lstrip("/")


def frame_number(stem: str) -> int | None:
    """Return the number at the end of a name, or None."""
    digits = re.search(r"(\d+)$", stem)
    return int(digits[1]) if digits else None


class RecordingNames:
    """Finds the recording that the name of an image contains. Of several, the longest name wins.

    Args:
        names: The names of all recordings.
    """

    def __init__(self, names: Collection[str]) -> None:
        ordered = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(f"/({'|'.join(map(re.escape, ordered))})(?![0-9A-Za-z])")

    def split(self, stem: str) -> tuple[str, str] | None:
        """Return the recording and the rest of the name of an image, or None if it belongs to no recording.

        Args:
            stem: The path of the image without its suffix.
        """
        match = self._pattern.search(f"/{stem}")
        return (match[1], f"/{stem}"[match.end() :]) if match else None


def counts_from_one(numbers: Iterable[int]) -> bool:
    """Return whether frames are numbered from 1: 1 is the smallest number."""
    return min(numbers, default=0) == 1


def frame_times_us(numbers: list[int], fps: float, is_from_one: bool) -> list[int]:
    """Return the times of frames in microseconds.

    Args:
        numbers: The numbers in the names of the images.
        fps: Frames per second. 0: the numbers are times in microseconds.
        is_from_one: Whether the first frame has the number 1.

    Raises:
        UserError: The numbers count frames, but their rate is not known.
    """
    if fps > 0:
        return [round(1e6 * (number - is_from_one) / fps) for number in numbers]
    ascending = sorted(set(numbers))
    if len(ascending) > 1 and (ascending[-1] - ascending[0]) / (len(ascending) - 1) < _SHORTEST_US:
        raise UserError(
            "labels.no_frame_rate",
            f"the names of the images have the numbers {ascending[0]} to {ascending[-1]}, which count frames; give "
            "their rate, as in `label_fps: 30` in dataset.yaml",
        )
    return numbers
