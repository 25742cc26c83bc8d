"""What a teacher and the motion before a static camera show in the frames of a clip, and where scenes begin."""

import hashlib
import itertools
import math
from collections.abc import Collection, Iterator
from pathlib import Path

import cv2
import numpy as np

from rvtssm.boxes import pairwise_iou
from rvtssm.contrib.worlds.label_video.boxes import INSIDE, LOW, MOVING, SAME_IOU, Teacher
from rvtssm.contrib.worlds.video import VideoSource, picture_files, read_picture
from rvtssm.system.files import atomic_file

WATCHED_HZ = 8.0

MOTION_PX = 320  # width in which motion is found
CHANGE = 18.0  # of a grey value that is motion
MOST_MOTION = 0.25  # share of the frame that changes before a static camera
LEAST_MOTION = 0.03  # side of a moving thing, in heights of the frame

OWN_WIDTH, OWN_LOWEST = 0.5, 0.9  # shares of the frame: least width and lower edge of a part of the own vehicle
OWN_SHARE = 0.1  # least share of the frames in which it is found

CUT = 25.0  # mean change of a small grey picture, of 255, between two scenes


def find_motion(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return what moves between two frames (H, W, 3) of a static camera, rows (N, 6) of the class MOVING.

    Each box covers both places. Nothing is found if so much changes that the camera moves.
    """
    scale = MOTION_PX / after.shape[1]
    size = MOTION_PX, round(after.shape[0] * scale)
    one, two = (
        cv2.GaussianBlur(
            cv2.resize(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), size, interpolation=cv2.INTER_AREA), (5, 5), 0
        )
        for frame in (before, after)
    )
    mask = (cv2.absdiff(one, two) > CHANGE).astype(np.uint8)
    if mask.mean() > MOST_MOTION:
        return np.zeros((0, 6))
    closed = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((15, 15), np.uint8)).astype(np.uint8)
    facts = cv2.connectedComponentsWithStats(closed, connectivity=8)[2][1:].astype(float)
    facts = facts[facts[:, 2:4].min(axis=1) >= LEAST_MOTION * size[1]]
    boxes = np.concatenate([facts[:, :2], facts[:, :2] + facts[:, 2:4]], axis=1) / scale
    return np.column_stack([boxes, np.full(len(boxes), MOVING), np.full(len(boxes), LOW)])


def watch(source: VideoSource, teacher: Teacher, longest_s: float) -> tuple[dict[int, np.ndarray], list[int]]:
    """Return the teacher's boxes by frame, and the frames with which a scene begins, last the end of the clip."""
    boxes_at: dict[int, np.ndarray] = {}
    edges: list[int] = []
    before, last, number = np.full((18, 32), np.inf), np.empty(0), -1
    for number, frame in enumerate(itertools.islice(read_frames(source), math.ceil(longest_s * source.fps))):
        grey = cv2.resize(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), (32, 18), interpolation=cv2.INTER_AREA).astype(float)
        if np.abs(grey - before).mean() > CUT:
            if number:
                boxes_at[number - 1] = teacher(last)  # so that tracks reach to the end of a scene
            edges.append(number)
        if (number - edges[-1]) % max(1, round(source.fps / WATCHED_HZ)) == 0:
            boxes_at[number] = teacher(frame)
        before, last = grey, frame
    boxes_at[number] = teacher(last)
    return boxes_at, [*edges, number + 1]


def watched_file(source: VideoSource, longest_s: float, folder: Path, teacher_name: str) -> Path:
    """Return the file that holds what a teacher saw in a clip. Its name depends on the files of the clip."""
    files = picture_files(source.path) if source.names else [source.path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    settings = longest_s, WATCHED_HZ, LOW, SAME_IOU, INSIDE, CUT
    digest = hashlib.sha256(repr((facts, teacher_name, settings)).encode()).hexdigest()[:16]
    return folder / f"{source.path.stem}_{digest}.npz"


def watched(
    source: VideoSource, teacher: Teacher, longest_s: float, path: Path
) -> tuple[dict[int, np.ndarray], list[int]]:
    """Return what `watch` does, from the file of an earlier call if there is one."""
    if not path.exists():
        boxes_at, edges = watch(source, teacher, longest_s)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as staged, open(staged, "wb") as file:
            np.savez(file, edges=edges, **{f"{frame:08d}": rows for frame, rows in boxes_at.items()})  # type: ignore[arg-type]
    with np.load(path) as stored:
        boxes_at = {int(name): stored[name] for name in sorted(stored.files) if name != "edges"}
        return without_own_vehicle(boxes_at, source.height, source.width), stored["edges"].tolist()


def without_own_vehicle(boxes_at: dict[int, np.ndarray], height: int, width: int) -> dict[int, np.ndarray]:
    """Return the boxes of a clip, in which those of the bonnet or handlebar of the camera's own vehicle are unsure.

    Such boxes are wide, end at the lower edge of the frame, and stay at one place through the clip.
    """
    rows = np.concatenate([np.zeros((0, 6)), *boxes_at.values()])
    low = _is_wide_and_low(rows, height, width)
    usual = np.median(rows[low, :4], axis=0, keepdims=True) if low.any() else np.zeros((1, 4))
    in_place = {
        frame: _is_wide_and_low(boxes, height, width) & (pairwise_iou(boxes[:, :4], usual)[:, 0] > SAME_IOU)
        for frame, boxes in boxes_at.items()
    }
    if sum(mask.any() for mask in in_place.values()) < OWN_SHARE * len(boxes_at):
        return boxes_at
    own = np.array([MOVING, LOW])
    return {
        frame: np.where(in_place[frame][:, None], np.column_stack([boxes[:, :4], np.tile(own, (len(boxes), 1))]), boxes)
        for frame, boxes in boxes_at.items()
    }


def _is_wide_and_low(rows: np.ndarray, height: int, width: int) -> np.ndarray:
    wide: np.ndarray = rows[:, 2] - rows[:, 0] > OWN_WIDTH * width
    return wide & (rows[:, 3] > OWN_LOWEST * height)


def motion(source: VideoSource, frames: Collection[int], edges: Collection[int]) -> dict[int, np.ndarray]:
    """Return what moves before a static camera, from each of these frames of a clip to the next one of the scene."""
    moving: dict[int, np.ndarray] = {}
    before: np.ndarray | None = None
    for number, frame in enumerate(itertools.islice(read_frames(source), max(frames) + 1)):
        if number in edges:
            before = None
        if number in frames:
            moving[number] = np.zeros((0, 6)) if before is None else find_motion(before, frame)
            before = frame
    return moving


def read_frames(source: VideoSource) -> Iterator[np.ndarray]:
    """Yield the frames of a clip, (H, W, 3) uint8."""
    if source.names:
        for path in picture_files(source.path):
            yield read_picture(path, cv2.IMREAD_COLOR)
        return
    capture = cv2.VideoCapture(str(source.path))
    try:
        while (answer := capture.read())[0]:
            yield answer[1]
    finally:
        capture.release()
