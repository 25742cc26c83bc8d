"""Labels of videos as boxes with times and tracks: MOT text, COCO JSON, and YOLO text or Pascal VOC XML per frame.

MOT counts frames from 1. An image of COCO is the picture of the same name; for a video file, images are its frames in
the order of their names. Annotations of COCO may have a `track_id`. A file of YOLO or Pascal VOC is named like a
picture of the video, or its name ends in the number of the frame. For YOLO, a file `classes.txt` beside the labels may
hold the names of the classes.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from rvtssm.contrib.worlds.video import VideoSource, by_number
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
            rows, frames = _READERS[kind](path, source)
        except (KeyError, TypeError, AttributeError, IndexError, ElementTree.ParseError) as error:
            raise UserError(f"{type(error).__name__}: {error}") from None
    last = max([row[0] for row in rows], default=-1)
    if rows and (min(row[0] for row in rows) < 0 or (source.num_frames and last >= source.num_frames)):
        raise UserError(
            f"{path} has labels of frame {last + 1}, but {source.path} has {source.num_frames} frames; name the labels "
            "of this video"
        )
    if frames is not None and source.names and not set(frames) & set(source.names):
        raise UserError(
            f"{path} labels the picture {frames[0]}, which {source.path} does not have; name the labels of this video"
        )
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
        boxes[i] = (round(1e6 * frame / source.fps), left, top, w, h, number, max(track, 0), 1.0, 0.0, -1)
    if not all(np.isfinite(boxes[side]).all() for side in "xywh") or (boxes["w"] < 0).any() or (boxes["h"] < 0).any():
        raise UserError(f"{path} has boxes with a non-finite or negative side; write them again")
    boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    _check_tracks(path, boxes, source.fps)
    return _clipped(boxes, source), names


def _format_of(path: Path) -> str:
    if path.is_dir():
        return "voc" if any(path.glob("*.xml")) else "yolo"
    return {".txt": "mot", ".csv": "mot", ".json": "coco"}.get(path.suffix, "mot")


def _read_mot(path: Path, source: VideoSource) -> tuple[list[Row], list[str] | None]:
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
    return rows, None


def _read_coco(path: Path, source: VideoSource) -> tuple[list[Row], list[str] | None]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8-sig"))
    images = sorted(content["images"], key=lambda image: (by_number(str(image.get("file_name", ""))), image["id"]))
    stems = [Path(str(image.get("file_name", image["id"]))).stem for image in images]
    by_name = {name: index for index, name in enumerate(source.names)}
    frame_of = {
        image["id"]: by_name.get(stem) if by_name else index
        for index, (image, stem) in enumerate(zip(images, stems, strict=True))
    }
    names = {category["id"]: str(category["name"]) for category in content["categories"]}
    rows: list[Row] = []
    for found in content["annotations"]:
        frame = frame_of[found["image_id"]]
        if frame is not None and not found.get("iscrowd"):  # None: the folder has no picture with this name
            left, top, w, h = map(float, found["bbox"])
            track = int(found.get("track_id", found.get("attributes", {}).get("track_id", 0)))
            rows.append((frame, left, top, w, h, names[found["category_id"]], track))
    return rows, stems


def _read_yolo(path: Path, source: VideoSource) -> tuple[list[Row], list[str] | None]:
    """Read `class cx cy w h[ track]`, in fractions of the frame."""
    rows: list[Row] = []
    files = [file for file in sorted(path.glob("*.txt")) if file.name != _YOLO_NAMES] if path.is_dir() else [path]
    for file in files:
        for line in file.read_text("utf-8-sig").splitlines():
            if words := line.split():
                try:
                    cx, cy, w, h = (float(word) for word in words[1:5])
                    class_id, track = int(words[0]), int(words[5]) if len(words) > 5 else 0
                except ValueError:
                    raise UserError(f"{file.name} has a line that is not `class cx cy w h[ track]`") from None
                if not 0 <= min(cx, cy, w, h) <= max(cx, cy, w, h) <= 1.001:
                    raise UserError(f"{file.name} has coordinates outside 0 to 1")
                size = source.width, source.height
                rows.append((_frame_of(file, source), (cx - w / 2) * size[0], (cy - h / 2) * size[1], w * size[0],
                             h * size[1], class_id, track))  # fmt: skip
    return rows, [file.stem for file in files]


def _read_voc(path: Path, source: VideoSource) -> tuple[list[Row], list[str] | None]:
    rows: list[Row] = []
    files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
    for file in files:
        for found in ElementTree.parse(file).getroot().iter("object"):
            name = (found.findtext("name") or "").strip()
            x1, y1, x2, y2 = (
                float(found.findtext(f"bndbox/{edge}") or "") for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            track = int(found.findtext("track_id") or 0)
            rows.append((_frame_of(file, source), x1, y1, x2 - x1, y2 - y1, name, track))
    return rows, [file.stem for file in files]


_READERS: dict[str, Callable[[Path, VideoSource], tuple[list[Row], list[str] | None]]] = {
    "mot": _read_mot,
    "coco": _read_coco,
    "yolo": _read_yolo,
    "voc": _read_voc,
}


def _frame_of(file: Path, source: VideoSource) -> int:
    """Return the frame of a label file, from 0: the picture with its name, or the number at the end of its name."""
    if file.stem in source.names:
        return source.names.index(file.stem)
    digits = re.search(r"(\d+)$", file.stem)
    if digits is None or source.names:
        raise UserError(f"{file.name} belongs to no frame of {source.path}")
    return int(digits[1])


def _check_tracks(path: Path, boxes: Boxes, fps: float) -> None:
    """Raise a UserError if two consecutive boxes of a track are too far apart to be one object."""
    for track in np.unique(boxes["track_id"][boxes["track_id"] > 0]):
        mine = boxes[boxes["track_id"] == track]
        if (np.diff(mine["t"]) == 0).any():
            frame = round(mine["t"][:-1][np.diff(mine["t"]) == 0][0] * fps / 1e6) + 1
            raise UserError(f"{path} has track {track} twice in frame {frame}; give each object a track of its own")
        cx, cy = mine["x"] + mine["w"] / 2, mine["y"] + mine["h"] / 2
        size = np.maximum(np.hypot(mine["w"], mine["h"])[:-1], np.hypot(mine["w"], mine["h"])[1:])
        jumps = (np.hypot(np.diff(cx), np.diff(cy)) > _LARGEST_JUMP * size) & (
            np.diff(mine["t"]) <= LONGEST_TRACK_GAP_US
        )
        if jumps.any():
            frame = round(mine["t"][1:][jumps][0] * fps / 1e6) + 1
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
