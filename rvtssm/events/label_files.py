"""Read boxes from the label files of common tools: Prophesee's arrays, COCO JSON, YOLO text and Pascal VOC XML.

A recording has a file of its own, a file for each labelled frame, or a part of a COCO file of several recordings. All
become arrays of BOX_DTYPE with the class ids of the dataset, so that they are all cleaned by the same rules. An
image without objects becomes an entry of `nothing_at`. `label_names` reads the names of images and files of frames.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.label_formats import LABEL_PARSERS, LabelledImage, parse_labels
from rvtssm.events.label_names import LabelNames, Place
from rvtssm.events.labels import BOX_DTYPE, Boxes, find_nothing, ltwh_of, nothing_at, read_boxes
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

_SHORTEST_US = 1000  # numbers of images closer than this are not times in microseconds
_FEWEST_CORNERS = 5  # boxes that all look like two corners
_ROUNDING = 1e-3  # of a side of the image: tolerance for numbers written with few digits
_MOST_OVER = 1e-2  # of a side of the image: how far a box may reach past an edge
LABEL_SUFFIXES = (".npy", *LABEL_PARSERS)
CORNERS = "boxes are wider and higher than their distance from the corner; are they x1, y1, x2, y2, not x, y, w, h?"
OVER = "boxes reach past an edge by up to 1 % of the image, and were cut there"
FROM_ONE = "labelled images are numbered from 1, so the number 1 is the frame at time 0"
SAME_TIME = "labelled images have the time of another image of their recording"


@dataclass(frozen=True, slots=True)
class LabelFiles:
    """Where the labels of one recording are."""

    recording: str
    paths: tuple[Path, ...]  # one file, or one for each labelled frame
    places: tuple[Place, ...] = ()  # per frame: what the name of each file says
    is_from_one: bool = False  # per frame: whether the first frame has the number 1
    sharing: tuple[str, ...] = ()  # names of all recordings whose labels are in the file; empty: only this one

    def need_end(self, spec: DatasetSpec) -> bool:
        """Whether labels may have no time other than the end of the recording."""
        suffix = self.paths[0].suffix
        is_timeless = suffix == ".xml" or (suffix == ".txt" and "time_us" not in spec.label_columns)
        return is_timeless and not self.places

    def read(self, spec: DatasetSpec, end_us: int | None = None, offset_us: int = 0) -> tuple[Boxes, Counter[str]]:
        """Return all boxes in order of time, and how many entries were left out or read in another way, by reason.

        Args:
            spec: The dataset, which gives the classes, the size of the sensor and the rate of frames.
            end_us: The time for labels that have none.
            offset_us: Added to the times of labels, except for `end_us`.

        Returns:
            (N,) of BOX_DTYPE, and the counts.

        Raises:
            UserError: A file does not have the form of its suffix, or a class is unknown.
        """
        path = self.paths[0]
        if path.suffix not in LABEL_SUFFIXES:
            raise UserError("file.kind", name=path, found="it is no label file", needed=list(LABEL_SUFFIXES))
        if not path.is_file():
            fault = "it is a folder" if path.is_dir() else "it does not exist"
            raise UserError("file.kind", name=path, found=fault, advice="put a label file in its place")
        notes: Counter[str] = Counter()
        if path.suffix == ".npy":
            boxes = read_boxes(path)
            boxes["t"] += offset_us
            places = [f"{path}, row {row}" for row in range(len(boxes))]
            _check_named(path, spec, Counter(boxes["class_id"][~find_nothing(boxes)].tolist()), {})
        else:
            found = self._found(spec)
            notes += sum((image.notes for image in found.images), found.notes)
            times_us = self._times_us(found, spec, end_us, offset_us, notes)
            boxes, places = _boxes(path, found.images, times_us, spec)
        if path.suffix != ".npy" or spec.name == "custom":  # boxes of published datasets may leave the view
            notes[OVER] += num_over(boxes, (spec.width, spec.height), places)
        notes[CORNERS] += _num_corners(boxes[~find_nothing(boxes)], path.suffix == ".txt")
        return boxes[np.argsort(boxes["t"], kind="stable")], +notes

    def _found(self, spec: DatasetSpec) -> "_Found":
        """Return the labelled images of the recording with what their names say."""
        if not self.places and not self.need_end(spec):
            only = None if self.sharing else self.recording
            stat = self.paths[0].stat()
            file = self.paths[0], stat.st_mtime_ns, stat.st_size
            return _found_in(spec, self.sharing or (self.recording,), only, *file).get(self.recording, _Found())
        images = _parsed(self.paths, spec)
        # A time in a file of one frame counts more than its name.
        known = zip(images, self.places, strict=False)
        places = [place if image.t_us is None else Place(self.recording, image.t_us, True) for image, place in known]
        return _Found(images, places, self.is_from_one)

    def _times_us(
        self, found: "_Found", spec: DatasetSpec, end_us: int | None, offset_us: int, notes: Counter[str]
    ) -> list[int]:
        """Return the time of each image; `notes` gets what is unusual with them."""
        path = self.paths[0]
        images = found.images
        if len(found.places) < len(images):
            if end_us is None:
                raise UserError("labels.no_time", name=path, found="its labels have no time")
            return [end_us] * len(images)
        _check_rate(path, found.places, spec)
        times_us = [_time_us(place, spec, found.is_from_one) + offset_us for place in found.places]
        if found.is_from_one and spec.label_fps > 0:
            notes[FROM_ONE] += len(images)
        notes[SAME_TIME] += len(images) - len(set(times_us))
        return times_us


@dataclass(frozen=True)
class _Found:
    """The labelled images of a recording."""

    images: Sequence[LabelledImage] = ()
    places: Sequence[Place] = ()  # what their names say; none if the labels have no time of their own
    is_from_one: bool = False  # whether the first frame of the dataset has the number 1
    notes: Counter[str] = field(default_factory=Counter)


@functools.lru_cache(maxsize=4)  # a file per split, which is read once for all its recordings
def _found_in(
    spec: DatasetSpec, recordings: tuple[str, ...], only: str | None, path: Path, *version: int
) -> dict[str, _Found]:
    """Return the labelled images of a file by the recording that their names say.

    Args:
        spec: The dataset.
        recordings: The names of all recordings.
        only: The recording of a file that holds labels of one recording.
        path: The file.
        version: What changes with the content of the file.
    """
    names = LabelNames(spec.label_names, recordings, only)
    entries = [(image, image.name, _place(path, image, names)) for image in _parsed((path,), spec)]
    by_recording, strangers, is_from_one = names.by_recording(entries, path)
    found = {name: _Found(images, places, is_from_one) for name, (images, places) in by_recording.items()}
    if strangers:  # said once for the file, beside its first recording
        text = f"images, such as {strangers[0]}, belong to a recording that is not there, and were left out"
        found[min(found)].notes[text] = len(strangers)
    return found


def _parsed(paths: Sequence[Path], spec: DatasetSpec) -> list[LabelledImage]:
    """Return the images of files, after comparing their sizes and classes with those of the dataset."""
    images = []
    counts: Counter[str | int] = Counter()
    places: dict[str | int, str] = {}
    for path in paths:
        for image in parse_labels(path, (spec.width, spec.height), spec.label_columns):
            _check_sensor(path, image, spec)
            images.append(image)
            for box in image.boxes:
                counts[box.kind] += 1
                places.setdefault(box.kind, box.place)
    _check_named(paths[0], spec, counts, places)
    return images


def _place(path: Path, image: LabelledImage, names: LabelNames) -> Place:
    """Return the recording and the time of an image of a file.

    In a file of one recording, an image with `t_us` may have any name.
    """
    place = names.read(image.name)
    if place is None or (place.recording is None and names.only is not None):
        if image.t_us is None or names.only is None:
            raise names.refused(f"{path}, image {image.name or 'without file_name'}", image.name)
        place = Place(names.only, 0)
    if image.t_us is not None:
        place = Place(place.recording, image.t_us, is_time=True)
    return place


def _time_us(place: Place, spec: DatasetSpec, is_from_one: bool) -> int:
    if place.is_time or not spec.label_fps:
        return place.number
    return round(1e6 * (place.number - is_from_one) / spec.label_fps)


def _check_rate(path: Path, places: Sequence[Place], spec: DatasetSpec) -> None:
    """Raise UserError if numbers in names count frames, but their rate is not known."""
    numbers = sorted({place.number for place in places if not place.is_time})
    if spec.label_fps or len(numbers) < 2 or (numbers[-1] - numbers[0]) / (len(numbers) - 1) >= _SHORTEST_US:
        return
    found = f"the names of its images have the numbers {numbers[0]} to {numbers[-1]}, which count frames"
    advice = "give their rate, as in `label_fps: 30` in dataset.yaml"
    raise UserError("labels.no_time", name=path, found=found, advice=advice)


def is_shared(suffix: str) -> bool:
    """Return whether a value of the key `labels` names a file of many recordings, not the end of a name."""
    return suffix.endswith(".json") and not suffix.startswith((".", "/"))


def _boxes(
    path: Path, images: Sequence[LabelledImage], times_us: Sequence[int], spec: DatasetSpec
) -> tuple[Boxes, list[str]]:
    """Return the boxes of the classes of the dataset with their places in the files.

    For each image without one, an entry of `nothing_at` comes after them.
    """
    names: tuple[str | int, ...] = (*spec.disk_class_ids, *spec.class_names)  # YOLO text has numbers
    ids = dict(zip(names, 2 * spec.disk_class_ids, strict=True))
    rows = []
    places = []
    empty_us = []
    for image, t_us in zip(images, times_us, strict=True):
        known = [box for box in image.boxes if box.kind in ids]
        for box in known:
            rows.append((t_us, *box.sides, ids[box.kind], box.track, 1, 0, -1))
            places.append(box.place)
        if not known and not image.notes:
            empty_us.append(t_us)
    with np.errstate(over="ignore"):  # an overflow becomes infinite
        boxes = np.array(rows, BOX_DTYPE)
    if not np.isfinite(ltwh_of(boxes)).all():
        raise UserError("labels.form", name=path, found="a box is not finite")
    empty = nothing_at(np.setdiff1d(np.array(empty_us, np.int64), boxes["t"]))
    empty["class_id"] = spec.disk_class_ids[0]
    return np.concatenate([boxes, empty]), places


def _check_named(path: Path, spec: DatasetSpec, counts: Counter[Any], places: Mapping[Any, str]) -> None:
    """Raise UserError if boxes have a class, by name or number, that the dataset neither has nor ignores.

    A dataset may ignore all other classes. It is refused then if one differs only in its capitals, or if all of several
    names are others.

    Args:
        path: The file, for the message.
        spec: The dataset.
        counts: The number of boxes by class.
        places: Where the first box of each class stands, if a file is not enough.
    """
    known = {*spec.class_names, *spec.disk_class_ids}
    unknown = {kind: n for kind, n in counts.items() if kind not in known}
    names = [kind for kind in unknown if isinstance(kind, str)]
    advice = "add them to classes in dataset.yaml, or to ignored_classes to leave them out"
    if spec.ignored_classes is None:
        own = {*map(str.casefold, spec.class_names)}
        are_in_other_capitals = not own.isdisjoint(map(str.casefold, names))
        if not are_in_other_capitals and (not names or len(unknown) < len(counts)):
            return
        advice = f"the dataset has {', '.join(spec.class_names)}; write the names in the same way in both"
    else:
        unknown = {kind: n for kind, n in unknown.items() if str(kind) not in spec.ignored_classes}
    if not unknown:
        return
    if set(unknown) == {spec.num_classes} and 0 not in counts and not spec.class_ids:
        ids = list(range(1, spec.num_classes + 1))
        advice = f"if the numbers of the classes begin with 1, say `class_ids: {ids}` in dataset.yaml"
    listed = ", ".join(f"{kind} ({count} boxes)" for kind, count in unknown.items())
    of = f"{sum(unknown.values())} of {counts.total()} boxes"
    found = f"{of} are of classes that the dataset does not name: {listed}"
    raise UserError("labels.class", name=places.get(next(iter(unknown)), path), found=found, advice=advice)


def _check_sensor(path: Path, image: LabelledImage, spec: DatasetSpec) -> None:
    """Raise UserError if a file gives a picture size other than the sensor's. A size of 0 counts as not given."""
    try:
        size = float(image.size[0]), float(image.size[1])
    except (TypeError, ValueError):
        return
    if 0 not in size and size != (spec.width, spec.height):
        name = path if image.name in ("", str(path)) else f"{path}, image {image.name}"
        found = f"the picture has {size[0]:g}x{size[1]:g} (width x height) pixels"
        needed = f"the sensor of {spec.name} has {spec.width}x{spec.height}"
        raise UserError("labels.size", name=name, found=found, needed=needed, advice="choose the size that fits")


def num_over(boxes: Boxes, size_wh: tuple[int, int], places: Sequence[str]) -> int:
    """Return how many annotated boxes reach past an edge by up to a hundredth of the image.

    Args:
        boxes: (N,) of BOX_DTYPE, in pixels of the image.
        size_wh: Width and height of the image.
        places: Where each box stands, for the message.

    Raises:
        UserError: A box reaches further.
    """
    width, height = size_wh
    with np.errstate(invalid="ignore", over="ignore"):
        x, y, w, h = ltwh_of(boxes).astype(np.float64).T
        over = np.maximum(np.maximum(-x, x + w - width) / width, np.maximum(-y, y + h - height) / height)
        is_own = np.isfinite(over) & (boxes["pseudo_score"] == 0)
    is_far = is_own & (over > _MOST_OVER)
    if not is_far.any():
        return int(np.count_nonzero(is_own & (over > _ROUNDING)))
    row = int(np.argmax(is_far))
    advice = "labels may be of images of another size"
    if x[row] < w[row] <= width and y[row] < h[row] <= height:
        advice = "are these x1, y1, x2, y2 in place of x, y, w, h?"
    sides = f"{x[row]:g}, {y[row]:g}, {w[row]:g}, {h[row]:g}"
    found = f"a box of x, y, w, h = {sides} reaches past the {width}x{height} (width x height) pixels"
    raise UserError("labels.outside", name=places[row], found=found, advice=advice)


def _num_corners(boxes: Boxes, from_centre: bool) -> int:
    """Return the number of boxes if each of them, and not only a few, can be two corners; otherwise 0.

    Args:
        boxes: The boxes, in sensor pixels.
        from_centre: Whether their file has the centre of a box in place of its corner.
    """
    if len(np.unique(boxes[["x", "y", "w", "h"]])) < _FEWEST_CORNERS:
        return 0
    share = 0.5 if from_centre else 1.0  # x1, y1, x2, y2 read as cx, cy, w, h: x = x1 - x2 / 2
    may_be_corners = (share * boxes["w"] > boxes["x"]) & (share * boxes["h"] > boxes["y"])
    return len(boxes) if may_be_corners.all() else 0
