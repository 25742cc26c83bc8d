"""Read boxes from the label files of common tools: Prophesee's arrays, COCO JSON, YOLO text and Pascal VOC XML.

A recording has a file of its own, a file for each labelled frame, or a part of a COCO file of several recordings. All
become arrays of BOX_DTYPE with the class ids of the dataset, so that they are all cleaned by the same rules. An
image without objects becomes an entry of `nothing_at`. `label_names` reads the names of images and files of frames.
"""

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.events.label_formats import LABEL_PARSERS, MOST_OVER, OVER, LabelledImage, box_outside, parse_labels
from rvtssm.events.label_names import LabelNames, Place
from rvtssm.events.labels import BOX_DTYPE, Boxes, find_nothing, nothing_at, read_boxes
from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

_SHORTEST_US = 1000  # numbers of images closer than this are not times in microseconds
_FEWEST_CORNERS = 5  # boxes that all look like two corners
LABEL_SUFFIXES = (".npy", *LABEL_PARSERS)
CORNERS = "boxes are wider and higher than their distance from the corner; are they x1, y1, x2, y2, not x, y, w, h?"
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
    tells_strangers: bool = False  # whether the notes of this recording count images that belong to no recording

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
        if path.suffix == ".npy":
            boxes, notes = read_boxes(path), Counter[str]()
            boxes["t"] += offset_us
            own = boxes["class_id"][~find_nothing(boxes)]
            _check_all_named(path, spec, Counter(own.tolist()))
            if spec.name == "custom":  # boxes of published datasets may leave the view
                notes += _check_edges(path, boxes, spec)
        else:
            images, notes = self._images(spec)
            times_us = self._times_us(images, spec, end_us, offset_us, notes)
            boxes = _boxes(self.paths[0], images, times_us, spec)
            notes += sum((image.notes for image in images), Counter[str]())
        notes[CORNERS] += _num_corners(boxes[~find_nothing(boxes)], path.suffix == ".txt")
        return boxes[np.argsort(boxes["t"], kind="stable")], +notes

    def _images(self, spec: DatasetSpec) -> tuple[list[LabelledImage], Counter[str]]:
        """Return the labelled images of the recording, and how many images of a shared file belong to no recording."""
        if not self.sharing:
            images = [image for path in self.paths for image in _parsed(path, spec)]
            _check_some_named(self.paths[0], spec, images)
            return images, Counter()
        path, stat = self.paths[0], self.paths[0].stat()
        shared = _shared_images(path, self.sharing, _Key(spec), stat.st_mtime_ns, stat.st_size)
        notes: Counter[str] = Counter()
        if shared.strangers and self.tells_strangers:
            example = shared.strangers[0]
            text = f"images, such as {example}, belong to a recording that is not there, and were left out"
            notes[text] = len(shared.strangers)
        return shared.images.get(self.recording, []), notes

    def _times_us(
        self,
        images: Sequence[LabelledImage],
        spec: DatasetSpec,
        end_us: int | None,
        offset_us: int,
        notes: Counter[str],
    ) -> list[int]:
        """Return the time of each image; `notes` gets what is unusual with them."""
        if any(image.t_us is None for image in images) and self.need_end(spec):
            if end_us is None:
                raise UserError("labels.no_time", name=self.paths[0], found="its labels have no time")
            return [end_us] * len(images)
        is_from_one, places = self.is_from_one, self.places
        if self.sharing:
            path, stat = self.paths[0], self.paths[0].stat()
            shared = _shared_images(path, self.sharing, _Key(spec), stat.st_mtime_ns, stat.st_size)
            is_from_one, places = shared.is_from_one, tuple(shared.places.get(self.recording, ()))
        elif not places and any(image.t_us is None for image in images):
            names = LabelNames(spec.label_names, [self.recording], self.recording)
            places = tuple(_place(self.paths[0], image, names) for image in images)
            is_from_one = counts_from_one(places)
        times_us = [image.t_us for image in images]
        if places:
            _check_rate(self.paths[0], places, spec)
            known = zip(images, places, strict=True)
            times_us = [_time_us(image, place, spec, is_from_one) for image, place in known]
        if is_from_one and spec.label_fps > 0:
            notes[FROM_ONE] += len(images)
        notes[SAME_TIME] += len(images) - len(set(times_us))
        return [int(time_us or 0) + offset_us for time_us in times_us]


@dataclass(frozen=True)
class _Key:
    """What decides how a label file is read, as a key of a cache: the rest of a spec may not be hashable."""

    spec: DatasetSpec

    def __hash__(self) -> int:
        return hash((self.spec.name, self.spec.height, self.spec.width))


@dataclass(frozen=True)
class _SharedImages:
    """The images of a file of many recordings, by the recording that their names say."""

    images: dict[str, list[LabelledImage]]
    places: dict[str, list[Place]]
    strangers: list[str]  # names of images whose recording is not there
    is_from_one: bool


@functools.lru_cache(maxsize=4)  # a file per split, which is read once for all its recordings
def _shared_images(path: Path, sharing: tuple[str, ...], key: _Key, *version: int) -> _SharedImages:
    names = LabelNames(key.spec.label_names, sharing)
    images: dict[str, list[LabelledImage]] = {}
    places: dict[str, list[Place]] = {}
    strangers = []
    found = _parsed(path, key.spec)
    _check_some_named(path, key.spec, found)
    for image in found:
        place = _place(path, image, names)
        if place.recording is None:
            strangers.append(image.name)
            continue
        images.setdefault(place.recording, []).append(image)
        places.setdefault(place.recording, []).append(place)
    if found and not images:
        raise UserError(
            "labels.name",
            name=path,
            found=f"no image belongs to a recording; the first is {found[0].name}",
            needed=f"names of the form {names.form}, of recordings such as {', '.join(sharing[:3])}",
            advice=_advice(names.nearest(found[0].name)),
        )
    numbers = [place for of_one in places.values() for place in of_one]
    return _SharedImages(images, places, strangers, counts_from_one(numbers))


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
    _check_all_named(path, spec, Counter(box.kind for image in images for box in image.boxes))
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
    return UserError(
        "labels.name",
        name=where,
        found=f"the name does not have the form {names.form}",
        advice=_advice(names.nearest(name)),
    )


def _advice(nearest: str) -> str:
    return f"say in dataset.yaml which form it has, as in label_names: '{nearest}' (docs/your_files.md)"


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
    raise UserError(
        "labels.no_time",
        name=path,
        found=f"the names of its images have the numbers {numbers[0]} to {numbers[-1]}, which count frames",
        advice="give their rate, as in `label_fps: 30` in dataset.yaml",
    )


def counts_from_one(places: Collection[Place]) -> bool:
    """Return whether frames are numbered from 1: 1 is the smallest number."""
    return min((place.number for place in places if not place.is_time), default=0) == 1


def _boxes(path: Path, images: Sequence[LabelledImage], times_us: Sequence[int], spec: DatasetSpec) -> Boxes:
    """Return the boxes of the classes of the dataset, and an entry of `nothing_at` for each image without one."""
    names: tuple[str | int, ...] = (*spec.disk_class_ids, *spec.class_names)  # YOLO text has numbers
    ids = dict(zip(names, 2 * spec.disk_class_ids, strict=True))
    rows, empty_us = [], []
    for image, t_us in zip(images, times_us, strict=True):
        known = [box for box in image.boxes if box.kind in ids]
        rows += [(t_us, *box.sides, ids[box.kind], box.track) for box in known]
        if not known and not image.notes:
            empty_us.append(t_us)
    boxes = _to_boxes(path, rows)
    empty = nothing_at(np.setdiff1d(np.array(empty_us, np.int64), boxes["t"]))
    empty["class_id"] = spec.disk_class_ids[0]
    return np.concatenate([boxes, empty])


def _check_some_named(path: Path, spec: DatasetSpec, images: Sequence[LabelledImage]) -> None:
    """Raise UserError if a dataset that ignores other classes names none of the labels, or one in other capitals."""
    if spec.ignored_classes is not None:
        return
    own = {name.casefold(): name for name in spec.class_names}
    names = {str(box.kind) for image in images for box in image.boxes if isinstance(box.kind, str)}
    for name in sorted(names - {*spec.class_names}):
        if name.casefold() in own:
            raise UserError(
                "labels.class",
                name=path,
                found=f"it has boxes of the class {name}, but the dataset says {own[name.casefold()]}",
                advice="write the name in the same way in both",
            )
    if names and not names.intersection(spec.class_names):
        raise UserError(
            "labels.class",
            name=path,
            found=f"it has the categories {', '.join(sorted(names))}, none of which is a class of {spec.name}",
            needed=list(spec.class_names),
            advice="use the names of the labels as class names",
        )


def _check_all_named(path: Path, spec: DatasetSpec, counts: Counter[Any]) -> None:
    """Raise UserError if boxes have a class, by name or number, that the dataset neither has nor ignores.

    Args:
        path: The file, for the message.
        spec: The dataset. One that ignores all other classes has no such boxes.
        counts: The number of boxes by class.
    """
    if spec.ignored_classes is None:
        return
    known = {*spec.class_names, *spec.disk_class_ids}
    unknown = {kind: n for kind, n in counts.items() if kind not in known and str(kind) not in spec.ignored_classes}
    if not unknown:
        return
    listed = ", ".join(f"{kind} ({count} boxes)" for kind, count in unknown.items())
    advice = "add them to classes in dataset.yaml, or to ignored_classes to leave them out"
    if set(unknown) == {spec.num_classes} and 0 not in counts and not spec.class_ids:
        ids = list(range(1, spec.num_classes + 1))
        advice = f"if the numbers of the classes begin with 1, say `class_ids: {ids}` in dataset.yaml"
    raise UserError(
        "labels.class",
        name=path,
        found=f"{sum(unknown.values())} of {counts.total()} boxes are of classes that the dataset does not name: "
        f"{listed}",
        advice=advice,
    )


def _check_sensor(path: Path, image: LabelledImage, spec: DatasetSpec) -> None:
    """Raise UserError if a file gives a picture size other than the sensor's. A size of 0 counts as not given."""
    try:
        size = float(image.size[0]), float(image.size[1])
    except (TypeError, ValueError):
        return
    if 0 not in size and size != (spec.width, spec.height):
        where = path if image.name in ("", str(path)) else f"{path}, image {image.name}"
        raise UserError(
            "labels.size",
            name=where,
            found=f"the picture has {size[0]:g}x{size[1]:g} (width x height) pixels",
            needed=f"the sensor of {spec.name} has {spec.width}x{spec.height}",
            advice="choose the size that fits",
        )


def _check_edges(path: Path, boxes: Boxes, spec: DatasetSpec) -> Counter[str]:
    """Count the annotated boxes of an array that reach past an edge a little. Raise UserError for one that goes far."""
    with np.errstate(invalid="ignore", over="ignore"):
        x, y, w, h = (boxes[name].astype(np.float64) for name in "xywh")
        across = np.maximum(-x, x + w - spec.width) / spec.width
        down = np.maximum(-y, y + h - spec.height) / spec.height
        over = np.maximum(across, down)
        is_own = np.isfinite(over) & (boxes["pseudo_score"] == 0)
        is_far = is_own & (over > MOST_OVER)
    if is_far.any():
        row = int(np.argmax(is_far))
        sides = float(x[row]), float(y[row]), float(w[row]), float(h[row])
        raise box_outside(f"{path}, row {row}", sides, (spec.width, spec.height))
    return Counter({OVER: int(np.count_nonzero(is_own & (over > 0)))})


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
    boxes["class_confidence"], boxes["still_us"] = 1, -1
    if not all(np.isfinite(boxes[name]).all() for name in "xywh"):
        raise UserError("labels.form", name=path, found="a box is not finite")
    return boxes
