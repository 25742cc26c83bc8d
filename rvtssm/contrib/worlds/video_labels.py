"""Labels of videos as boxes with times and tracks: MOT text, COCO JSON, and YOLO text or Pascal VOC XML per frame.

MOT counts frames from 1. An image of COCO, and a file of YOLO or Pascal VOC, is named like a picture of the video, or
its name ends in the number of the frame. If the smallest of these numbers is 1, frames are counted from 1, which a
warning says. Images of COCO without such numbers are the frames in the order of their names. Annotations of COCO may
have a `track_id`. For YOLO, a file `classes.txt` beside the labels may hold the names of the classes.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rvtssm.contrib.worlds.video import VideoSource, by_number, files_in
from rvtssm.datasets.custom import listed_names
from rvtssm.events.label_files import FROM_ONE
from rvtssm.events.label_formats import LabelledImage, parse_labels
from rvtssm.events.label_names import image_stem
from rvtssm.events.labels import BOX_DTYPE, Boxes, number_of_track
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError

_MOST_CLASSES = 1 << 16
_YOLO_NAMES = "classes.txt"  # in the folder of the labels

Row = tuple[int, float, float, float, float, str | int, int]  # frame from 0, left, top, width, height, class, track


def read_video_labels(
    path: Path | str,
    label_format: str | None,
    source: VideoSource,
    classes: Sequence[str] | None,
    columns: Sequence[str] = (),
) -> tuple[Boxes, tuple[str, ...]]:
    """Return the boxes of a video, ordered by time, and the names of their classes. Boxes without a track have track 0.

    Args:
        path: The file or folder of the labels.
        label_format: `mot`, `coco`, `yolo` or `voc`; None means that suffixes decide.
        source: The video.
        classes: For MOT and YOLO, names of the class numbers; for COCO and Pascal VOC, names of the classes to keep.
            None means the names in the labels, all classes.
        columns: What the numbers of a line of YOLO text are; empty for class, cx, cy, w, h.

    Raises:
        UserError: If the labels cannot be read, belong to other frames, or have a track twice in a frame.
    """
    path = Path(path)
    if not path.exists():
        raise UserError("file.missing", name=path, found="does not exist", needed="the labels of the video")
    kind = label_format or _format_of(path)
    with file_errors(path, f" cannot be read as {kind} labels", "choose label_format=mot, coco, yolo or voc"):
        rows, stems = _READERS[kind](path, source, columns)
    _check_names(path, stems, source)
    rows = _of_frames(path, rows, source)
    kinds = sorted({row[5] for row in rows}, key=str)
    if kind in ("mot", "yolo"):
        highest = max((int(k) for k in kinds), default=0)
        if highest >= _MOST_CLASSES:
            raise UserError(
                "labels.class", name=path, found=f"class {highest}",
                needed=f"numbers below {_MOST_CLASSES}, counted from 0",
            )  # fmt: skip
        if kind == "yolo" and not classes:
            classes = [*listed_names(path / _YOLO_NAMES).values()]
        names = tuple(classes or map(str, range(highest + 1)))
        if kinds and highest >= len(names):
            raise UserError(
                "labels.class", name=path, found=f"class {highest}, and {len(names)} names",
                advice="add names to classes=[...]",
            )  # fmt: skip
        rows = [row for row in rows if int(row[5]) >= 0]
    else:
        names = tuple(classes or (str(name) for name in kinds))
        rows = [row for row in rows if row[5] in names]
    if not names:
        raise UserError(
            "labels.missing", name=path, found="no box", advice="name other labels, or leave labels=FILE out"
        )
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for i, (frame, left, top, w, h, kind_of, track) in enumerate(rows):
        number = int(kind_of) if isinstance(kind_of, int) else names.index(kind_of)
        boxes[i] = (source.times_us[frame], left, top, w, h, number, track, 1.0, 0.0, -1)
    if not all(np.isfinite(boxes[side]).all() for side in "xywh") or (boxes["w"] < 0).any() or (boxes["h"] < 0).any():
        raise UserError(
            "labels.form", name=path, found="a box with a non-finite or negative side", advice="write them again"
        )
    boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    _check_tracks(path, boxes, source.times_us)
    return _clipped(boxes, source), names


def _format_of(path: Path) -> str:
    if path.is_dir():
        return "voc" if files_in(path, ".xml") else "yolo"
    return "coco" if path.suffix.lower() == ".json" else "mot"


def _of_frames(path: Path, rows: list[Row], source: VideoSource) -> list[Row]:
    """Return the rows without those of the frames that a cut video lacks. Raise UserError for frames of another one."""
    frames = [row[0] for row in rows]
    if rows and not 0 <= min(frames) <= max(frames) < max(source.stated_frames, source.num_frames):
        raise UserError(
            "labels.other_times", name=path,
            found=f"labels of frame {max(frames) + 1}, and {source.path} has {source.num_frames} frames",
            advice="name the labels of this video",
        )  # fmt: skip
    present = [row for row in rows if row[0] < source.num_frames]
    if len(present) < len(rows):
        warnings.warn(f"{path}: {len(rows) - len(present)} labels of later frames are left out", stacklevel=3)
    return present


def _check_names(path: Path, stems: Sequence[str], source: VideoSource) -> None:
    """Raise UserError if no label file or image is a picture of the folder; warn if some are not."""
    others = [stem for stem in stems if stem not in set(source.names)]
    if not source.names or not others:
        return
    if len(others) == len(stems):
        raise UserError(
            "labels.other_times", name=path,
            found=f"labels of the picture {others[0]}, which {source.path} does not have",
            advice="name the labels of this video",
        )  # fmt: skip
    warnings.warn(
        f"{path} labels {len(others)} pictures that {source.path} does not have, such as {others[0]}; their labels are "
        "left out",
        stacklevel=3,
    )


def _read_mot(path: Path, source: VideoSource, columns: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Read `frame, track, left, top, width, height[, valid[, class]]`, with frames and classes counted from 1."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = [float(word) for word in line.split(",")]
            frame, track, left, top, w, h = values[:6]
            if len(values) > 6 and values[6] == 0:
                continue  # MOT marks this entry as one to be ignored
        except ValueError:
            raise UserError(
                "labels.form", name=f"line {number}", needed="`frame,track,left,top,width,height`"
            ) from None
        class_id = values[7] if len(values) > 7 and values[7] != -1 else 1.0  # -1: none, as trackers write it
        for name, value in (("frame", frame), ("class", class_id)):
            if value < 1 or not value.is_integer():
                needed = "whole numbers, counted from 1"
                raise UserError("labels.form", name=f"line {number}", found=f"{name} {value:g}", needed=needed)
        rows.append((int(frame) - 1, left, top, w, h, int(class_id) - 1, number_of_track(track)))
    return rows, []


def _read_images(path: Path, source: VideoSource, columns: Sequence[str], suffix: str) -> tuple[list[Row], list[str]]:
    """Read COCO, YOLO or Pascal VOC, as the suffix says."""
    size, is_coco = (source.width, source.height), suffix == ".json"
    images = [image for file in _label_files(path, suffix) for image in parse_labels(file, size, columns, suffix)]
    if is_coco:
        images.sort(key=lambda image: by_number(_stem(image)))
    stems = [_stem(image) for image in images]
    frames = _frames_of(path, stems, source)
    frame_of_image = [frames.get(stem) for stem in stems] if frames or not is_coco else list(range(len(images)))
    rows: list[Row] = []
    for image, frame in zip(images, frame_of_image, strict=True):
        if frame is not None:  # None: the folder has no picture with this name
            rows += [(frame, *box.sides, box.kind, box.track) for box in image.boxes]
        elif image.boxes and not is_coco:
            raise UserError("labels.other_times", name=Path(image.name).name, found=f"of no frame of {source.path}")
    for note, count in sum((image.notes for image in images), Counter[str]()).items():
        warnings.warn(f"{path}: {count} {note}", stacklevel=4)
    return rows, stems


def _stem(image: LabelledImage) -> str:
    return image_stem(image.name).rpartition("/")[2]


_READERS: dict[str, Callable[[Path, VideoSource, Sequence[str]], tuple[list[Row], list[str]]]] = {
    "mot": _read_mot,
    "coco": partial(_read_images, suffix=".json"),
    "yolo": partial(_read_images, suffix=".txt"),
    "voc": partial(_read_images, suffix=".xml"),
}


def _label_files(path: Path, suffix: str) -> list[Path]:
    """Return the label files of a folder, or the one that was named."""
    return [file for file in files_in(path, suffix) if file.name != _YOLO_NAMES] if path.is_dir() else [path]


def _frames_of(path: Path, stems: Sequence[str], source: VideoSource) -> dict[str, int]:
    """Return the frames, from 0, of label files or images by their names without suffix.

    For a folder of pictures, these are its pictures with the same name. For a video file, names end in the number of
    the frame. There is none unless these numbers differ and fit the video.
    """
    if source.names:
        return {name: index for index, name in enumerate(source.names) if name in set(stems)}
    ends = [re.search(r"\d{1,18}$", stem) for stem in stems]
    numbers = [int(end[0]) for end in ends if end]
    if not numbers or len(set(numbers)) < len(stems):
        return {}
    first = int(min(numbers) == 1)
    if max(numbers) - first >= max(source.stated_frames, source.num_frames):
        return {}
    if first:
        warnings.warn(f"{path}: {len(stems)} {FROM_ONE}", stacklevel=5)
    return {stem: number - first for stem, number in zip(stems, numbers, strict=True)}


def _check_tracks(path: Path, boxes: Boxes, times_us: Sequence[int]) -> None:
    """Raise a UserError if a track has two boxes in a frame."""
    for track in np.unique(boxes["track_id"][boxes["track_id"] > 0]):
        mine = boxes[boxes["track_id"] == track]
        if (np.diff(mine["t"]) == 0).any():
            frame = times_us.index(mine["t"][:-1][np.diff(mine["t"]) == 0][0]) + 1
            raise UserError(
                "labels.form", name=path, found=f"track {track} twice in frame {frame}",
                advice="give each object a track of its own",
            )  # fmt: skip


def _clipped(boxes: Boxes, source: VideoSource) -> Boxes:
    """Return the boxes clipped to the frame, without boxes outside of it."""
    for start, size, limit in (("x", "w", source.width), ("y", "h", source.height)):
        end = np.clip(boxes[start] + boxes[size], 0, limit)
        boxes[start] = np.clip(boxes[start], 0, limit)
        boxes[size] = end - boxes[start]
    return boxes[(boxes["w"] > 0) & (boxes["h"] > 0)]
