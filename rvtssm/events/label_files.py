"""Read boxes from the label files of common tools: Prophesee's arrays, COCO JSON, YOLO text and Pascal VOC XML.

A recording has a file of its own, a file for each labelled frame, or a part of a COCO file of several recordings. All
become arrays of BOX_DTYPE with the class ids of the dataset, so that they are all cleaned by the same rules. An
image without objects becomes an entry of `nothing_at`. `label_names` reads the names of images and files of frames.
"""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.label_formats import LABEL_PARSERS, LabelledImage, parse_labels
from rvtssm.events.label_names import LabelNames, Place
from rvtssm.events.labels import BOX_DTYPE, Boxes, find_nothing, nothing_at, read_boxes
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
        if path.is_dir():
            raise UserError("file.kind", name=path, found="it is a folder", advice="put a label file in its place")
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
        if self.sharing:
            stat = self.paths[0].stat()
            of_all = _found_in_shared(self.paths[0], self.sharing, spec, stat.st_mtime_ns, stat.st_size)
            return of_all.get(self.recording, _Found())
        images = [image for path in self.paths for image in _parsed(path, spec)]
        _check_kinds(self.paths[0], images, spec)
        if self.places or self.need_end(spec) or all(image.t_us is not None for image in images):
            return _Found(images, list(self.places), self.is_from_one)
        names = LabelNames(spec.label_names, [self.recording], self.recording)
        places = [_place(self.paths[0], image, names) for image in images]
        return _Found(images, places, counts_from_one(places))

    def _times_us(
        self, found: "_Found", spec: DatasetSpec, end_us: int | None, offset_us: int, notes: Counter[str]
    ) -> list[int]:
        """Return the time of each image; `notes` gets what is unusual with them."""
        path = self.paths[0]
        images = found.images
        if found.places:
            _check_rate(path, found.places, spec)
            known = zip(images, found.places, strict=True)
            times_us = [_time_us(image, place, spec, found.is_from_one) for image, place in known]
        elif all(image.t_us is not None for image in images):
            times_us = [image.t_us or 0 for image in images]
        elif end_us is not None:
            return [end_us] * len(images)
        else:
            raise UserError("labels.no_time", name=path, found="its labels have no time")
        if found.is_from_one and spec.label_fps > 0:
            notes[FROM_ONE] += len(images)
        notes[SAME_TIME] += len(images) - len(set(times_us))
        return [time_us + offset_us for time_us in times_us]


@dataclass(frozen=True)
class _Found:
    """The labelled images of a recording."""

    images: list[LabelledImage] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)  # what their names say; none if their times are known
    is_from_one: bool = False  # whether the first frame of the dataset has the number 1
    notes: Counter[str] = field(default_factory=Counter)


@functools.lru_cache(maxsize=4)  # a file per split, which is read once for all its recordings
def _found_in_shared(path: Path, sharing: tuple[str, ...], spec: DatasetSpec, *version: int) -> dict[str, _Found]:
    """Return the labelled images of a file of many recordings, by the recording that their names say."""
    names = LabelNames(spec.label_names, sharing)
    images = _parsed(path, spec)
    _check_kinds(path, images, spec)
    places = [_place(path, image, names) for image in images]
    is_from_one = counts_from_one([place for place in places if place.recording is not None])
    found: dict[str, _Found] = {}
    strangers = []  # images whose recording is not there
    for image, place in zip(images, places, strict=True):
        if place.recording is None:
            strangers.append(image.name)
            continue
        of_one = found.setdefault(place.recording, _Found(is_from_one=is_from_one))
        of_one.images.append(image)
        of_one.places.append(place)
    if strangers and not found:
        raise of_no_recording(path, strangers[0], names)
    if strangers:  # said once for the file, beside its first recording
        text = f"images, such as {strangers[0]}, belong to a recording that is not there, and were left out"
        found[min(found)].notes[text] = len(strangers)
    return found


def read_label_file(path: Path | str, spec: DatasetSpec, end_us: int | None = None) -> Boxes:
    """Return all boxes of a file of one recording in order of time, see `LabelFiles.read`.

    Args:
        path: A file with a suffix in LABEL_SUFFIXES.
        spec: The dataset, which gives the classes and the size of the sensor.
        end_us: The time for labels that have none.

    Returns:
        (N,) of BOX_DTYPE.
    """
    path = Path(path)
    offset_us = spec.label_offset_us if isinstance(spec.label_offset_us, int) else 0
    return LabelFiles(path.stem, (path,)).read(spec, end_us, offset_us)[0]


def _parsed(path: Path, spec: DatasetSpec) -> list[LabelledImage]:
    """Return the images of a file, after comparing their sizes and classes with those of the dataset."""
    images = parse_labels(path, (spec.width, spec.height), spec.label_columns)
    for image in images:
        _check_sensor(path, image, spec)
    return images


def _place(path: Path, image: LabelledImage, names: LabelNames) -> Place:
    """Return what the name of an image of a COCO file says. An image with `t_us` may have any name in its own file."""
    place = names.read(image.name)
    if place is not None and (place.recording is not None or names.only is None):
        return place
    if image.t_us is not None and names.only is not None:
        return Place(names.only, 0, is_time=True)
    raise name_refused(f"{path}, image {image.name or 'without file_name'}", image.name, names)


def name_refused(where: str, name: str, names: LabelNames) -> UserError:
    """Return the error for a name that does not have the form of `label_names`."""
    found = f"the name does not have the form {names.form}"
    return UserError("labels.name", name=where, found=found, advice=names.advice(name))


def of_no_recording(where: Path, name: str, names: LabelNames) -> UserError:
    """Return the error for labels of which none belongs to a recording; `name` is the first of them."""
    found = f"no label belongs to a recording; the first is {name}"
    needed = f"names of the form {names.form}, of recordings such as {', '.join(names.examples)}"
    return UserError("labels.name", name=where, found=found, needed=needed, advice=names.advice(name))


def _time_us(image: LabelledImage, place: Place, spec: DatasetSpec, is_from_one: bool) -> int:
    if image.t_us is not None:
        return image.t_us
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


def counts_from_one(places: Collection[Place]) -> bool:
    """Return whether frames are numbered from 1: 1 is the smallest number."""
    return min((place.number for place in places if not place.is_time), default=0) == 1


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
        rows += [(t_us, *box.sides, ids[box.kind], box.track) for box in known]
        places += [box.place for box in known]
        if not known and not image.notes:
            empty_us.append(t_us)
    boxes = _to_boxes(path, rows)
    empty = nothing_at(np.setdiff1d(np.array(empty_us, np.int64), boxes["t"]))
    empty["class_id"] = spec.disk_class_ids[0]
    return np.concatenate([boxes, empty]), places


def _check_kinds(path: Path, images: Sequence[LabelledImage], spec: DatasetSpec) -> None:
    """Compare the classes of images with those of the dataset, see `_check_named`."""
    boxes = [box for image in images for box in image.boxes]
    places = {box.kind: box.place for box in reversed(boxes)}
    _check_named(path, spec, Counter(box.kind for box in boxes), places)


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
        own = {name.casefold() for name in spec.class_names}
        in_other_capitals = [name for name in names if name.casefold() in own]
        if not in_other_capitals and (not names or len(unknown) < len(counts)):
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
        x, y, w, h = (boxes[name].astype(np.float64) for name in "xywh")
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


def _to_boxes(path: Path, rows: Sequence[tuple[Any, ...]]) -> Boxes:
    boxes = np.zeros(len(rows), BOX_DTYPE)
    columns = zip(*rows, strict=True)
    for name, column in zip(("t", "x", "y", "w", "h", "class_id", "track_id"), columns, strict=bool(rows)):
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which is checked below
            boxes[name] = column
    boxes["class_confidence"] = 1
    boxes["still_us"] = -1
    if not all(np.isfinite(boxes[name]).all() for name in "xywh"):
        raise UserError("labels.form", name=path, found="a box is not finite")
    return boxes
