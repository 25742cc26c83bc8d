"""Labels of videos as boxes with times and tracks: MOT text, COCO JSON, and YOLO text or Pascal VOC XML per frame.

MOT counts frames from 1. An image of COCO, and a file of YOLO or Pascal VOC, is named like a picture of the video, or
its name ends in the number of the frame. If none of these numbers is 0, frames are counted from 1, which a warning
says. Images of COCO without such numbers are the frames in the order of their names. Annotations of COCO may have a
`track_id`. For YOLO, a file `classes.txt` beside the labels may hold the names of the classes.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from rvtssm.contrib.worlds.video import VideoSource, by_number, files_in
from rvtssm.events.labels import BOX_DTYPE, LONGEST_TRACK_GAP_US, Boxes
from rvtssm.system.file_errors import file_errors
from rvtssm.system.user_error import UserError

_MOST_CLASSES = 1 << 16
_LARGEST_JUMP = 2.0  # largest jump of a track between two labels, in sizes of its box
_YOLO_NAMES = "classes.txt"  # in the folder of the labels

Row = tuple[int, float, float, float, float, str | int, int]  # frame from 0, left, top, width, height, class, track


def read_video_labels(
    path: Path | str, label_format: str | None, source: VideoSource, classes: Sequence[str] | None
) -> tuple[Boxes, tuple[str, ...]]:
    """Return the boxes of a video, ordered by time, and the names of their classes. Boxes without a track have track 0.

    Args:
        path: The file or folder of the labels.
        label_format: `mot`, `coco`, `yolo` or `voc`; None means that suffixes decide.
        source: The video.
        classes: For MOT and YOLO, names of the class numbers; for COCO and Pascal VOC, names of the classes to keep.
            None means the names in the labels, all classes.

    Raises:
        UserError: If the labels cannot be read, belong to other frames, or have a track that jumps.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; name the labels of the video")
    kind = label_format or _format_of(path)
    with file_errors(path, f" cannot be read as {kind} labels", "choose label_format=mot, coco, yolo or voc"):
        try:
            rows, stems = _READERS[kind](path, source)
        except (KeyError, TypeError, AttributeError, IndexError, ElementTree.ParseError) as error:
            raise UserError(f"{type(error).__name__}: {error}") from None
    last = max([row[0] for row in rows], default=-1)
    _check_names(path, stems, source)
    rows = _of_frames(path, rows, source)
    if max(last, *(row[6] for row in rows), 0) >= 1 << 32:
        raise UserError(f"{path} has a frame or a track with a number of 2^32 or more; count them from 1")
    found = sorted({row[5] for row in rows}, key=str)
    if kind in ("mot", "yolo"):
        highest = max((int(k) for k in found), default=0)
        if highest >= _MOST_CLASSES:
            raise UserError(f"{path} has a class with a number of {_MOST_CLASSES} or more; count them from 0")
        if kind == "yolo" and not classes and (path / _YOLO_NAMES).is_file():
            lines = (path / _YOLO_NAMES).read_text("utf-8-sig").splitlines()
            classes = [line.strip() for line in lines if line.strip()]
        names = tuple(classes or map(str, range(highest + 1)))
        if found and highest >= len(names):
            raise UserError(
                f"{path} has class {highest}, but there are only {len(names)} names; add names to classes=[...]"
            )
        rows = [row for row in rows if int(row[5]) >= 0]
    else:
        names = tuple(classes or (str(name) for name in found))
        rows = [row for row in rows if row[5] in names]
    if not names:
        raise UserError(f"{path} has no box; name other labels, or leave labels=FILE out")
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for i, (frame, left, top, w, h, kind_of, track) in enumerate(rows):
        number = int(kind_of) if isinstance(kind_of, int) else names.index(kind_of)
        boxes[i] = (source.times_us[frame], left, top, w, h, number, max(track, 0), 1.0, 0.0, -1)
    if not all(np.isfinite(boxes[side]).all() for side in "xywh") or (boxes["w"] < 0).any() or (boxes["h"] < 0).any():
        raise UserError(f"{path} has boxes with a non-finite or negative side; write them again")
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
            f"{path} has labels of frame {max(frames) + 1}, but {source.path} has {source.num_frames} frames; name the "
            "labels of this video"
        )
    kept = [row for row in rows if row[0] < source.num_frames]
    if len(kept) < len(rows):
        warnings.warn(f"{path}: {len(rows) - len(kept)} labels of later frames are left out", stacklevel=3)
    return kept


def _check_names(path: Path, stems: Sequence[str], source: VideoSource) -> None:
    """Raise UserError if no label file or image is a picture of the folder; warn if some are not."""
    others = [stem for stem in stems if stem not in set(source.names)]
    if not source.names or not others:
        return
    if len(others) == len(stems):
        raise UserError(
            f"{path} labels the picture {others[0]}, which {source.path} does not have; name the labels of this video"
        )
    warnings.warn(
        f"{path} labels {len(others)} pictures that {source.path} does not have, such as {others[0]}; their labels are "
        "left out",
        stacklevel=3,
    )


def _read_mot(path: Path, source: VideoSource) -> tuple[list[Row], list[str]]:
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
            class_id = int(values[7]) - 1 if len(values) > 7 and values[7] >= 1 else 0
        except ValueError:
            raise UserError(f"line {number} is not `frame,track,left,top,width,height`") from None
        rows.append((int(frame) - 1, left, top, w, h, class_id, int(track)))
    return rows, []


def _read_coco(path: Path, source: VideoSource) -> tuple[list[Row], list[str]]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8-sig"))
    paths = {image["id"]: str(image.get("file_name", image["id"])) for image in content["images"]}
    stem_of = {image: PureWindowsPath(name).stem for image, name in paths.items()}  # divided by slash or backslash
    stems = sorted(stem_of.values(), key=by_number)
    frames = _frames_of(path, stems, source) or {stem: index for index, stem in enumerate(stems)}
    frame_of = {image: frames.get(stem) for image, stem in stem_of.items()}
    names = {category["id"]: str(category["name"]) for category in content["categories"]}
    rows: list[Row] = []
    for found in content["annotations"]:
        frame = frame_of[found["image_id"]]
        if frame is not None and not found.get("iscrowd"):  # None: the folder has no picture with this name
            left, top, w, h = map(float, found["bbox"])
            track = int(found.get("track_id", found.get("attributes", {}).get("track_id", 0)))
            rows.append((frame, left, top, w, h, names[found["category_id"]], track))
    return rows, stems


def _read_yolo(path: Path, source: VideoSource) -> tuple[list[Row], list[str]]:
    """Read `class cx cy w h[ track]`, or class and points of a polygon, in fractions of the frame."""
    rows: list[Row] = []
    files = _label_files(path, ".txt")
    frames = _frames_of(path, [file.stem for file in files], source)
    for file in files:
        for line in filter(str.strip, file.read_text("utf-8-sig").splitlines()):
            try:
                class_id, (cx, cy, w, h), track = _yolo_box(line.split())
            except ValueError:
                raise UserError(
                    f"{file.name} has a line that is not `class cx cy w h[ track]`, nor a polygon"
                ) from None
            if not 0 <= min(cx, cy, w, h) <= max(cx, cy, w, h) <= 1.001:
                raise UserError(f"{file.name} has coordinates outside 0 to 1")
            left, top = (cx - w / 2) * source.width, (cy - h / 2) * source.height
            frame = _frame_of(file, frames, source)
            rows.append((frame, left, top, w * source.width, h * source.height, class_id, track))
    return rows, [file.stem for file in files]


def _yolo_box(words: Sequence[str]) -> tuple[int, tuple[float, ...], int]:
    """Return class, box as centre and size, and track of a line. A polygon has three points or more."""
    class_id, values = float(words[0]), [float(word) for word in words[1:]]
    if class_id % 1 or len(values) < 4 or (len(values) > 5 and len(values) % 2):
        raise ValueError
    if len(values) > 5:
        low, high = (np.array([side(values[::2]), side(values[1::2])]) for side in (min, max))
        return int(class_id), (*((low + high) / 2), *(high - low)), 0
    return int(class_id), tuple(values[:4]), int(words[5]) if len(words) > 5 else 0


def _read_voc(path: Path, source: VideoSource) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    files = _label_files(path, ".xml")
    frames = _frames_of(path, [file.stem for file in files], source)
    for file in files:
        for found in ElementTree.parse(file).getroot().iter("object"):
            name = (found.findtext("name") or "").strip()
            x1, y1, x2, y2 = (
                float(found.findtext(f"bndbox/{edge}") or "") for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            track = int(found.findtext("track_id") or 0)
            rows.append((_frame_of(file, frames, source), x1, y1, x2 - x1, y2 - y1, name, track))
    return rows, [file.stem for file in files]


_READERS: dict[str, Callable[[Path, VideoSource], tuple[list[Row], list[str]]]] = {
    "mot": _read_mot,
    "coco": _read_coco,
    "yolo": _read_yolo,
    "voc": _read_voc,
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
    numbers = [int(found[1]) for stem in stems if (found := re.search(r"(?<!-)(\d+)$", stem))]
    if not numbers or len(set(numbers)) < len(stems):
        return {}
    first = min(1, *numbers)
    if max(numbers) - first >= max(source.stated_frames, source.num_frames):
        return {}
    if first:
        warnings.warn(f"{path}: no name has the number 0, so {stems[0]} counts frames from 1", stacklevel=2)
    return {stem: number - first for stem, number in zip(stems, numbers, strict=True)}


def _frame_of(file: Path, frames: Mapping[str, int], source: VideoSource) -> int:
    if file.stem not in frames:
        raise UserError(f"{file.name} belongs to no frame of {source.path}")
    return frames[file.stem]


def _check_tracks(path: Path, boxes: Boxes, times_us: Sequence[int]) -> None:
    """Raise a UserError if two consecutive boxes of a track are too far apart to be one object."""
    for track in np.unique(boxes["track_id"][boxes["track_id"] > 0]):
        mine = boxes[boxes["track_id"] == track]
        if (np.diff(mine["t"]) == 0).any():
            frame = times_us.index(mine["t"][:-1][np.diff(mine["t"]) == 0][0]) + 1
            raise UserError(f"{path} has track {track} twice in frame {frame}; give each object a track of its own")
        cx, cy = mine["x"] + mine["w"] / 2, mine["y"] + mine["h"] / 2
        size = np.maximum(np.hypot(mine["w"], mine["h"])[:-1], np.hypot(mine["w"], mine["h"])[1:])
        jumps = (np.hypot(np.diff(cx), np.diff(cy)) > _LARGEST_JUMP * size) & (
            np.diff(mine["t"]) <= LONGEST_TRACK_GAP_US
        )
        if jumps.any():
            frame = times_us.index(mine["t"][1:][jumps][0]) + 1
            raise UserError(
                f"{path} has a track {track} that jumps by more than {_LARGEST_JUMP:g} sizes of its box to frame "
                f"{frame}; give the objects tracks of their own"
            )


def _clipped(boxes: Boxes, source: VideoSource) -> Boxes:
    """Return the boxes clipped to the frame, without boxes outside of it."""
    for start, size, limit in (("x", "w", source.width), ("y", "h", source.height)):
        end = np.clip(boxes[start] + boxes[size], 0, limit)
        boxes[start] = np.clip(boxes[start], 0, limit)
        boxes[size] = end - boxes[start]
    return boxes[(boxes["w"] > 0) & (boxes["h"] > 0)]
