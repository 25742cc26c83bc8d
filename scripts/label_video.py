"""Turn clips of real streets into recordings with boxes, for the training of the street detectors.

    npm pack @mediapipe/objectron@0.4.1675468480 && tar xf mediapipe-objectron-*.tgz
    pip install ai-edge-litert
    python scripts/label_video.py CLIPS --teacher package/objectron_solution_packed_assets.data --out DIR/real

CLIPS is a folder of videos and of folders of pictures (for these, give --fps). A detector that was trained on pictures,
the teacher, finds people, bicycles and vehicles eight times per second: an SSD MobileNetV2 of Open Images (Apache-2.0),
whose file is in the package above; the file of the model alone works as well. It sees the frame and overlapping tiles,
because it sees 300 x 300 pixels and would miss small objects otherwise. In eleven frames of four clips it found 22
objects with a high score in the frames alone, 46 with tiles, and 52 with mirror images, too, which double the time and
are left out.

Boxes become tracks that end at scene cuts. A track is sure from its first to its last high score if it lasts and has
several of them; a moment in which the teacher missed the object is interpolated. Other tracks are unsure if one
of their scores is not very low: training ignores what lies there (a negative `pseudo_score`, as `rvtssm label` writes
it). Before a static camera, whatever moves without a box is unsure, too. A person who moves with a bicycle becomes
part of a two-wheeler; one inside a vehicle is unsure, and so is one who never moves.

Each part of a clip of a few seconds becomes several recordings. Each draws a size, a crop of the frame, a mirror image,
a camera (`sensor=any`) and, for half of them, a slow pan of the crop with a shaking hand. As in generated worlds, an
object gets its first box when its events are clearly more than noise, and label times without any box say so.

The recordings, DIR/train/real_*, fit into the tree of the recipe `street_tiny`:

    ln DIR/real/train/real_* DIR/raw/train/
    rvtssm train experiment=street_tiny dataset.raw_dir=DIR/raw out=DIR/tiny

Training draws recordings by their length, so that their share is their share of the seconds; the last line of the
output says how many there are. `docs/simulation.md` names clips with a free licence. Do not give clips that test a
detector later.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from rvtssm.boxes import cxcywh_to_xyxy, pairwise_iou, xyxy_to_ltwh
from rvtssm.cli.composition import quoted
from rvtssm.cli.main import compose
from rvtssm.contrib.worlds.generate import with_events
from rvtssm.contrib.worlds.open_world import SPEC
from rvtssm.contrib.worlds.simulate import simulate
from rvtssm.contrib.worlds.video import VideoSource, open_video, picture_files
from rvtssm.drawing.image_files import write_png
from rvtssm.events.labels import BOX_DTYPE, Boxes, nothing_at, read_boxes, write_boxes
from rvtssm.readers import open_recording
from rvtssm.synthetic.camera import drawn_camera
from rvtssm.synthetic.simulation_config import FIRST_LABEL_US
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.user_error import UserError

PERSON, VEHICLE, TWO_WHEELER = range(len(SPEC.class_names))
MOVING = len(SPEC.class_names)  # something that the teacher did not find
OF_TEACHER = {1: TWO_WHEELER, 4: PERSON, 18: VEHICLE, 23: VEHICLE}  # Bicycle, Person, Vehicle, Car
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".ogv")

INPUT_PX = 300  # of the teacher
STRIDES = (16, 32, 64, 128, 256, 512)
SCALES = 0.2, 0.95  # of the anchors of the first and of the last stride
RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)

LOW, UNSURE, HIGH = 0.2, 0.3, 0.4  # scores of a box that continues a track, starts an unsure one, a sure one
SAME_IOU = 0.5  # boxes of a class in a frame that are one object
INSIDE = 0.8  # share of a box within another: the smaller one is a part of it, or a person in a vehicle
WATCHED_HZ = 8.0
TILE, TILE_STEP = 0.65, 0.5  # side of a tile and most distance between two, in heights of the frame
LEAST_OF_GROUP = 0.15  # share of a box inside another one, which may be a group then
EDGE_PX = 4.0  # a box that ends this close to an inner edge of a tile is cut off

MOTION_PX = 320  # width in which motion is found
CHANGE = 18.0  # of a grey value that is motion
MOST_MOTION = 0.25  # share of the frame that changes before a static camera
LEAST_MOTION = 0.03  # side of a moving thing, in heights of the frame
TOUCHED = 0.05  # share of it under a sure box that explains the motion
COVERED = 0.3  # share of any box under it that explains it

LINK_IOU = 0.3  # of a track with its next box
GAP_S = 0.4  # longest time for which the teacher may miss an object
LEAST_S, LEAST_HIGH = 0.3, 3  # duration and number of high scores of a sure track
STILL_S, STILL = 1.5, 0.3  # a person who moves by less, in heights, for longer may be a thing
SMOOTHED_S = 0.08  # standard deviation of the filter over the boxes of a track

CUT = 25.0  # mean change of a small grey picture, of 255, between two scenes
LONGEST_S, SHORTEST_S = 6.0, 1.0  # of a part
LEAST_CROP = 0.55  # of the largest crop of a frame
PAN_SHARE = 0.5
LABEL_US = SPEC.label_interval_us
LEAST_VISIBLE = 0.3  # of a box within the crop
MAX_RATE_HZ = 80.0  # per pixel, as in the recipe

# From a picture (H, W, 3) uint8 BGR to rows (N, 6) of left, top, right, bottom, class and score.
Teacher = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Track:
    """The boxes of one object, or of something unsure, in consecutive frames."""

    class_id: int
    is_sure: bool
    first: int  # frame of the first box
    boxes: np.ndarray  # (N, 4) left top right bottom
    scores: np.ndarray  # (N,)

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def end(self) -> int:
        return self.first + len(self)

    def part(self, start: int, end: int) -> Track:
        """Return the boxes of the frames from `start` to before `end`, counted in the clip."""
        kept = slice(start - self.first, end - self.first)
        return replace(self, first=start, boxes=self.boxes[kept], scores=self.scores[kept])

    def at(self, frame: float) -> np.ndarray | None:
        """Return the box at a time between two frames, or None if the track does not reach it."""
        if not self.first <= frame <= self.end - 1:
            return None
        before = min(int(frame) - self.first, max(len(self) - 2, 0))
        share = frame - self.first - before
        after = min(before + 1, len(self) - 1)
        return (1 - share) * self.boxes[before] + share * self.boxes[after]


# the teacher


@cache
def anchors() -> np.ndarray:
    """Return the anchors of the teacher (1917, 4): centre, width and height as shares of the picture.

    Liu et al., SSD, ECCV 2016. Each place of the first stride has three anchors, each other one six.
    """
    scales = [*np.linspace(*SCALES, len(STRIDES)), 1.0]
    rows = []
    for level, stride in enumerate(STRIDES):
        shapes = [(scales[level], ratio) for ratio in RATIOS] + [(math.sqrt(scales[level] * scales[level + 1]), 1.0)]
        if level == 0:
            shapes = [(scales[0] / 2, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        side = math.ceil(INPUT_PX / stride)
        for y, x, (scale, ratio) in itertools.product(range(side), range(side), shapes):
            rows.append(((x + 0.5) / side, (y + 0.5) / side, scale * math.sqrt(ratio), scale / math.sqrt(ratio)))
    return np.array(rows)


def decode(encoded: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return boxes as shares of the picture, with class and score: rows (N, 6) of our classes from LOW on.

    Args:
        encoded: (1917, 4), ten times the shift of the centre y, x in sizes of the anchor, and five times the logarithm
            of its growth in height and width.
        logits: (1917, K), class 0 is background.
    """
    own = anchors()
    centre = encoded[:, [1, 0]] / 10 * own[:, 2:] + own[:, :2]
    boxes = cxcywh_to_xyxy(np.concatenate([centre, np.exp(encoded[:, [3, 2]] / 5) * own[:, 2:]], axis=1))
    rows = [np.zeros((0, 6))]
    for theirs, ours in OF_TEACHER.items():
        score = 1 / (1 + np.exp(-logits[:, theirs].astype(np.float64)))
        kept = score >= LOW
        rows.append(np.column_stack([boxes[kept], np.full(kept.sum(), ours), score[kept]]))
    return without_doubles(np.concatenate(rows))


def without_doubles(rows: np.ndarray) -> np.ndarray:
    """Return the boxes without those that another one of the class with a higher score covers."""
    rows = rows[np.argsort(-rows[:, 5], kind="stable")]
    kept: list[int] = []
    area = np.prod(rows[:, 2:4] - rows[:, :2], axis=1)
    for i in range(len(rows)):
        better = rows[kept]
        better = better[better[:, 4] == rows[i, 4]]
        inner = np.clip(np.minimum(better[:, 2:4], rows[i, 2:4]) - np.maximum(better[:, :2], rows[i, :2]), 0, None)
        is_part = (np.prod(inner, axis=1) > INSIDE * area[i]).any()
        if not is_part and not (pairwise_iou(better[:, :4], rows[i : i + 1, :4]) > SAME_IOU).any():
            kept.append(i)
    return rows[kept]


def open_teacher(path: Path) -> Teacher:
    """Return the teacher of a TFLite file, or of a file that holds one after other content.

    Raises:
        UserError: The package that reads it is missing, or the file is no such model.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise UserError("the teacher needs a package that is missing; pip install ai-edge-litert") from None
    if not path.is_file():
        raise UserError(f"{path} does not exist; give the file of the teacher, which the head of this script names")
    content = path.read_bytes()
    start = content.find(b"TFL3") - 4
    if start < 0:
        raise UserError(f"{path} holds no TFLite model; give objectron_solution_packed_assets.data of the package")
    model = Interpreter(model_content=content[start:], num_threads=1)
    model.allocate_tensors()
    (given,) = model.get_input_details()
    answers = sorted(model.get_output_details(), key=lambda each: each["shape"][-1])
    shapes = [list(each["shape"]) for each in (given, *answers)]
    if len(answers) != 2 or shapes[:2] != [[1, INPUT_PX, INPUT_PX, 3], [1, len(anchors()), 4]]:
        raise UserError(f"{path} holds a model of {shapes}, not the teacher; give the file that this script names")

    def teacher(picture: np.ndarray) -> np.ndarray:
        small = cv2.resize(picture, (INPUT_PX, INPUT_PX), interpolation=cv2.INTER_AREA)
        model.set_tensor(given["index"], small[None, :, :, ::-1].astype(np.float32) / 127.5 - 1)
        model.invoke()
        rows = decode(*(model.get_tensor(each["index"])[0] for each in answers))
        rows[:, :4] *= np.array(picture.shape)[[1, 0, 1, 0]]
        return rows

    return teacher


def tiles(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return what the teacher sees of a frame, as left, top, right, bottom: all of it, and overlapping squares."""
    side = round(TILE * height)

    def starts(length: int) -> list[int]:
        count = math.ceil(max(length - side, 0) / (TILE_STEP * height)) + 1
        return [round(start) for start in np.linspace(0, max(length - side, 0), count)]

    squares = itertools.product(starts(height), starts(width))
    return [(0, 0, width, height), *((x, y, min(x + side, width), y + side) for y, x in squares)]


def find_boxes(frame: np.ndarray, teacher: Teacher) -> np.ndarray:
    """Return the teacher's boxes in a frame (H, W, 3), rows (N, 6) in pixels of the frame."""
    height, width = frame.shape[:2]
    rows = [np.zeros((0, 6))]
    for left, top, right, bottom in tiles(height, width):
        found = teacher(frame[top:bottom, left:right]).reshape(-1, 6) + np.array([left, top, left, top, 0, 0])
        is_cut = np.zeros(len(found), bool)
        for side, edge, outer in ((0, left, 0), (1, top, 0), (2, right, width), (3, bottom, height)):
            if edge != outer:
                is_cut |= np.abs(found[:, side] - edge) < EDGE_PX
        rows.append(found[~is_cut])
    together = np.concatenate(rows)
    together[:, :4] = np.clip(together[:, :4], 0, (width, height, width, height))
    return without_doubles(together)


def find_motion(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return what moves between two frames (H, W, 3) of a static camera, rows (N, 6) of the class MOVING.

    Each box covers both places. Nothing is found if so much changes that the camera moves.
    """
    scale = MOTION_PX / after.shape[1]
    size = MOTION_PX, round(after.shape[0] * scale)
    one, two = (
        cv2.GaussianBlur(
            cv2.resize(cv2.cvtColor(each, cv2.COLOR_BGR2GRAY), size, interpolation=cv2.INTER_AREA), (5, 5), 0
        )
        for each in (before, after)
    )
    mask = (cv2.absdiff(one, two) > CHANGE).astype(np.uint8)
    if mask.mean() > MOST_MOTION:
        return np.zeros((0, 6))
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((15, 15), np.uint8))
    facts = cv2.connectedComponentsWithStats(mask, connectivity=8)[2][1:].astype(float)
    facts = facts[facts[:, 2:4].min(axis=1) >= LEAST_MOTION * size[1]]
    boxes = np.concatenate([facts[:, :2], facts[:, :2] + facts[:, 2:4]], axis=1) / scale
    return np.column_stack([boxes, np.full(len(boxes), MOVING), np.full(len(boxes), LOW)])


# tracks


def link(found: Mapping[int, np.ndarray], fps: float) -> list[Track]:
    """Join the boxes of a scene to tracks, and return the sure and the unsure ones.

    Args:
        found: Rows (N, 6) by the number of the frame, in order.
        fps: Frames per second.
    """
    running: list[list[tuple[int, np.ndarray]]] = []
    done: list[list[tuple[int, np.ndarray]]] = []
    for frame, rows in found.items():
        is_over = [(frame - track[-1][0]) / fps > GAP_S for track in running]
        done += list(itertools.compress(running, is_over))
        running = [track for track, over in zip(running, is_over, strict=True) if not over]
        expected = np.array([_expected(track, frame, fps) for track in running]).reshape(-1, 4)
        overlap = pairwise_iou(expected, rows[:, :4])
        overlap[np.array([track[-1][1][4] for track in running])[:, None] != rows[:, 4]] = 0
        free = np.ones(len(rows), bool)
        while overlap.size and overlap.max() >= LINK_IOU:
            track, row = np.unravel_index(overlap.argmax(), overlap.shape)
            overlap[track], overlap[:, row], free[row] = 0, 0, False
            running[track].append((frame, rows[row]))
        running += [[(frame, row)] for row in rows[free]]
    return with_riders([part for track in done + running for part in _judged(track, fps)])


def _expected(track: list[tuple[int, np.ndarray]], frame: int, fps: float) -> np.ndarray:
    """Return the box of a track in a later frame, if it moves on as it did in the last tenths of a second."""
    last, row = track[-1]
    before, earlier = next(each for each in track if (last - each[0]) / fps <= GAP_S)
    if last == before:
        return row[:4]
    centres = [(each[:2] + each[2:4]) / 2 for each in (earlier, row)]
    move = (centres[1] - centres[0]) / (last - before) * (frame - last)
    return row[:4] + np.tile(move, 2)


def _judged(track: list[tuple[int, np.ndarray]], fps: float) -> Iterator[Track]:
    """Yield a track with a box in every frame: a sure part, and unsure ones before and after it; or one unsure part."""
    frames, rows = np.array([frame for frame, _ in track]), np.stack([row for _, row in track])
    every = np.arange(frames[0], frames[-1] + 1)
    t = (frames - every[:, None]) / fps
    near = np.exp(-((t / SMOOTHED_S) ** 2) / 2) * rows[:, 5] + 1e-9
    mean, square = (near * t).sum(axis=1, keepdims=True), (near * t**2).sum(axis=1, keepdims=True)
    near *= square - mean * t + 1e-9  # a line through the boxes nearby, or their mean if they have one time
    boxes = near @ rows[:, :4] / near.sum(axis=1, keepdims=True)
    whole = Track(int(rows[0, 4]), False, int(every[0]), boxes, np.interp(every, frames, rows[:, 5]))
    high = frames[rows[:, 5] >= HIGH]
    if len(high) >= LEAST_HIGH and (high[-1] - high[0] + 1) / fps >= LEAST_S:
        certain = whole.part(high[0], high[-1] + 1)
        yield replace(
            certain, is_sure=certain.class_id != PERSON or len(certain) < STILL_S * fps or _moves(certain.boxes)
        )
        for start, end in ((whole.first, high[0]), (high[-1] + 1, whole.end)):
            if end > start:
                yield whole.part(start, end)
    elif len(rows) > 1 and (whole.class_id == MOVING or rows[:, 5].max() >= UNSURE):
        yield whole


def _moves(boxes: np.ndarray) -> bool:
    """Return whether an edge of a person's boxes (N, 4) moves by more than the teacher's boxes jitter."""
    return bool(np.ptp(boxes, axis=0).max() > STILL * (boxes[:, 3] - boxes[:, 1]).mean())


def with_riders(tracks: Sequence[Track]) -> list[Track]:
    """Return the tracks with riders as a part of their two-wheelers: people above a bicycle that move with it.

    What is left of both, before and after, is unsure.
    """
    left = list(tracks)
    for bicycle in sorted([track for track in tracks if track.class_id == TWO_WHEELER], key=len, reverse=True):
        riders = [track for track in left if track.class_id == PERSON and _rides(track, bicycle)]
        if not riders:
            continue
        person = max(riders, key=lambda track: min(bicycle.end, track.end) - max(bicycle.first, track.first))
        start, end = max(bicycle.first, person.first), min(bicycle.end, person.end)
        wheels, body = bicycle.part(start, end), person.part(start, end)
        corners = np.minimum(wheels.boxes, body.boxes)[:, :2], np.maximum(wheels.boxes, body.boxes)[:, 2:]
        scores = np.maximum(wheels.scores, body.scores)
        both = Track(TWO_WHEELER, bicycle.is_sure or person.is_sure, start, np.concatenate(corners, axis=1), scores)
        left = [track for track in left if track is not bicycle and track is not person] + [both]
        for track in (bicycle, person):
            pieces = (track.first, start), (end, track.end)
            left += [replace(track.part(*piece), is_sure=False) for piece in pieces if piece[1] > piece[0]]
    return left


def _rides(person: Track, bicycle: Track) -> bool:
    start, end = max(bicycle.first, person.first), min(bicycle.end, person.end)
    if end - start < max(2, 0.6 * min(len(person), len(bicycle))):
        return False
    body, wheels = person.part(start, end).boxes, bicycle.part(start, end).boxes
    width = np.maximum(body[:, 2] - body[:, 0], wheels[:, 2] - wheels[:, 0])
    shift = np.abs((wheels[:, ::2] - body[:, ::2]).mean(axis=1)) / width
    tall = wheels[:, 3] - wheels[:, 1]
    is_above = (body[:, 1] < wheels[:, 1] + 0.3 * tall) & (body[:, 3] > wheels[:, 1])
    return bool(((shift < 0.4) & is_above & (body[:, 3] < wheels[:, 3] + 0.2 * tall)).mean() >= 0.8)


def boxes_at(tracks: Sequence[Track], frame: float) -> list[tuple[int, Track, np.ndarray, bool]]:
    """Return number, track, box and whether it is sure, of what there is at a time between two frames of a clip.

    Parts of a two-wheeler are joined to it. What is unsure and lies on something sure is left out. Unsure are also
    people inside a vehicle, and vehicles or people of which one contains the other: one of them is a group or a part.
    """
    found = [(k, track, box) for k, track in enumerate(tracks) if (box := track.at(frame)) is not None]
    corners = np.array([box for *_, box in found]).reshape(-1, 4)
    classes = np.array([track.class_id for _, track, _ in found], int)
    is_sure = np.array([track.is_sure for _, track, _ in found], bool)
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    ends = np.minimum(corners[:, None, 2:], corners[None, :, 2:])
    inner = np.prod(np.clip(ends - np.maximum(corners[:, None, :2], corners[None, :, :2]), 0, None), axis=2)
    is_smaller = (area[:, None] < area) & is_sure  # than a sure one
    is_inside = is_smaller & (inner > INSIDE * area[:, None])
    is_same = classes[:, None] == classes
    is_on_wheels = (classes == TWO_WHEELER) & ((classes == PERSON) | (classes == TWO_WHEELER))[:, None]
    is_part = is_on_wheels & is_smaller & (is_inside | (is_same & (inner > 0.4 * area[:, None])))
    for i, j in np.argwhere(is_part):
        found[j][2][:] = *np.minimum(corners[i, :2], found[j][2][:2]), *np.maximum(corners[i, 2:], found[j][2][2:])
    is_covered = is_sure & ~is_sure[:, None] & ((pairwise_iou(corners, corners) > SAME_IOU) | (is_same & is_inside))
    is_explained = (inner > COVERED * area) | (is_sure & (inner > TOUCHED * area[:, None]))
    is_covered |= (classes == MOVING)[:, None] & (classes != MOVING) & is_explained
    is_kept = ~(is_part | is_covered).any(axis=1)
    is_inside &= is_kept & is_kept[:, None]
    is_group = is_inside & is_same & is_sure[:, None] & (area[:, None] > LEAST_OF_GROUP * area)
    is_in_vehicle = is_inside & ((classes == PERSON)[:, None] & (classes == VEHICLE))
    is_sure = is_sure & ~(is_group | is_in_vehicle).any(axis=1) & ~is_group.any(axis=0)
    return [
        (k, track, box, bool(sure)) for (k, track, box), sure, kept in zip(found, is_sure, is_kept, strict=True) if kept
    ]


# clips


def read_frames(source: VideoSource) -> Iterator[np.ndarray]:
    """Yield the frames of a clip, (H, W, 3) uint8."""
    if source.names:
        for path in picture_files(source.path):
            if (frame := cv2.imread(str(path), cv2.IMREAD_COLOR)) is not None:
                yield frame
        return
    capture = cv2.VideoCapture(str(source.path))
    try:
        while (answer := capture.read())[0]:
            yield answer[1]
    finally:
        capture.release()


def watch(source: VideoSource, teacher: Teacher, longest_s: float) -> tuple[dict[int, np.ndarray], list[int]]:
    """Return the teacher's boxes by frame, and the frames with which a scene begins, last the end of the clip."""
    found: dict[int, np.ndarray] = {}
    edges: list[int] = []
    before, last, number = np.full((18, 32), np.inf), np.empty(0), -1
    for number, frame in enumerate(itertools.islice(read_frames(source), math.ceil(longest_s * source.fps))):
        grey = cv2.resize(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), (32, 18), interpolation=cv2.INTER_AREA).astype(float)
        if np.abs(grey - before).mean() > CUT:
            if number:
                found[number - 1] = find_boxes(last, teacher)  # so that tracks reach to the end of a scene
            edges.append(number)
        if (number - edges[-1]) % max(1, round(source.fps / WATCHED_HZ)) == 0:
            found[number] = find_boxes(frame, teacher)
        before, last = grey, frame
    found[number] = find_boxes(last, teacher)
    return found, [*edges, number + 1]


def watched(
    source: VideoSource, teacher: Teacher, longest_s: float, folder: Path, teacher_name: str
) -> tuple[dict[int, np.ndarray], list[int]]:
    """Return what `watch` does, from a file of an earlier call if there is one."""
    files = picture_files(source.path) if source.names else [source.path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    settings = longest_s, WATCHED_HZ, TILE, TILE_STEP, EDGE_PX, LOW, SAME_IOU, INSIDE, CUT
    digest = hashlib.sha256(repr((facts, teacher_name, settings)).encode()).hexdigest()[:16]
    path = folder / f"{source.path.stem}_{digest}.npz"
    if not path.exists():
        found, edges = watch(source, teacher, longest_s)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as staged, open(staged, "wb") as file:
            np.savez(file, edges=edges, **{f"{frame:08d}": rows for frame, rows in found.items()})
    with np.load(path) as kept:
        return {int(name): kept[name] for name in sorted(kept.files) if name != "edges"}, kept["edges"].tolist()


def motion(source: VideoSource, frames: Collection[int], edges: Collection[int]) -> dict[int, np.ndarray]:
    """Return what moves before a static camera, from each of these frames of a clip to the next one of the scene."""
    found: dict[int, np.ndarray] = {}
    before: np.ndarray | None = None
    for number, frame in enumerate(itertools.islice(read_frames(source), max(frames) + 1)):
        if number in edges:
            before = None
        if number in frames:
            found[number] = np.zeros((0, 6)) if before is None else find_motion(before, frame)
            before = frame
    return found


def parts(edges: Sequence[int], fps: float) -> list[tuple[int, int]]:
    """Return first frame and end of the parts of a clip: scenes, long ones divided, short ones left out."""
    pieces = []
    for start, end in itertools.pairwise(edges):
        borders = np.linspace(start, end, math.ceil((end - start) / (LONGEST_S * fps)) + 1).round().astype(int).tolist()
        pieces += [piece for piece in itertools.pairwise(borders) if piece[1] - piece[0] >= SHORTEST_S * fps]
    return pieces


@dataclass(frozen=True)
class View:
    """How a recording sees the frames of a part: `scale` times as large, mirrored or not, from an offset on."""

    height: int
    width: int
    scale: float
    is_mirrored: bool
    offsets: np.ndarray  # (frames, 2), x and y in pixels of the recording

    def picture(self, frame: np.ndarray, index: int) -> np.ndarray:
        """Return what is seen of frame number `index` of the part, (height, width, 3) uint8."""
        if self.is_mirrored:
            frame = frame[:, ::-1]
        size = [math.ceil(side * self.scale) for side in (frame.shape[1], frame.shape[0])]
        small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        move = np.array([[1, 0, -self.offsets[index, 0]], [0, 1, -self.offsets[index, 1]]])
        border = cv2.BORDER_REPLICATE
        return cv2.warpAffine(small, move, (self.width, self.height), flags=cv2.INTER_CUBIC, borderMode=border)

    def box(self, box: np.ndarray, index: float, frame_width: int) -> np.ndarray | None:
        """Return a box (4,) of the frames as left, top, right, bottom in the recording; None if little is visible."""
        if self.is_mirrored:
            box = np.array([frame_width - box[2], box[1], frame_width - box[0], box[3]])
        every = np.arange(len(self.offsets))
        offset = [np.interp(index, every, self.offsets[:, side]) for side in (0, 1)]
        moved = box * self.scale - np.tile(offset, 2)
        inside = np.clip(moved, 0, (self.width, self.height, self.width, self.height))
        visible, whole = (np.prod(np.maximum(each[2:] - each[:2], 0)) for each in (inside, moved))
        return inside if visible >= LEAST_VISIBLE * whole > 0 else None


def draw_view(
    size: tuple[int, int], frame_hw: tuple[int, int], num_frames: int, fps: float, rng: np.random.Generator
) -> View:
    """Return a random view of a part. It is never larger than the frames, except where they are smaller than `size`."""
    height, width = size
    least = max(height / frame_hw[0], width / frame_hw[1])  # the whole frame fits
    scale = least if least >= 1 else min(1.0, least / rng.uniform(LEAST_CROP, 1.0))
    room = np.array([max(math.floor(side * scale) - want, 0) for side, want in zip(frame_hw, size, strict=True)])[::-1]
    t = np.arange(num_frames) / fps
    start, end = rng.uniform(0, 1, (2, 2)) * room
    offsets = np.tile(start, (num_frames, 1))
    if rng.random() < PAN_SHARE:
        way = np.sin(np.pi / 2 * t / max(t[-1], 1 / fps))[:, None] ** 2
        rates, phases = rng.uniform(0.5, 2.5, (2, 1, 3)), rng.uniform(0, 2 * np.pi, (2, 1, 3))
        shake = np.sin(2 * np.pi * rates * t[:, None] + phases).sum(axis=2).T * rng.uniform(0, 0.006) * height
        offsets = np.clip(start + way * (end - start) + shake, 0, room)
    return View(height, width, scale, bool(rng.random() < 0.5), offsets)


# recordings


def label_times_us(num_frames: int, fps: float) -> np.ndarray:
    """Return the times of the labels of a recording."""
    return np.arange(-(-FIRST_LABEL_US // LABEL_US) * LABEL_US, int(1e6 * (num_frames - 1) / fps) + 1, LABEL_US)


def labels(tracks: Sequence[Track], view: View, first: int, fps: float, frame_width: int) -> Boxes:
    """Return the boxes of a recording whose first frame is number `first` of the clip.

    `pseudo_score` is the mean score of the track, negative where it is not sure.
    """
    rows = []
    for t_us in label_times_us(len(view.offsets), fps).tolist():
        index = t_us * fps / 1e6
        for number, track, box, is_sure in boxes_at(tracks, first + index):
            if (seen := view.box(box, index, frame_width)) is not None:
                score = float(track.scores.mean())
                left, top, w, h = xyxy_to_ltwh(seen)
                class_id = track.class_id if track.class_id != MOVING else PERSON if h > w else VEHICLE
                row = (t_us, left, top, w, h, class_id, number + 1, score, score if is_sure else -score, -1)
                rows.append(row)
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for i, row in enumerate(rows):
        boxes[i] = row
    return boxes


def write_recording(
    frames: Sequence[np.ndarray], view: View, boxes: Boxes, fps: float, out: Path, name: str, seed: int
) -> Boxes:
    """Write out/train/NAME_td.dat and NAME_bbox.npy, and return the boxes: those whose events can be seen."""
    events_path = out / "train" / f"{name}_td.dat"
    with tempfile.TemporaryDirectory() as temporary:
        pictures = Path(temporary) / name
        own = f"simulate.video={quoted(str(pictures))}", f"simulate.fps={fps:g}", f"out={quoted(str(out))}"
        camera = "sensor=any", f"synthetic.camera.max_rate_hz={MAX_RATE_HZ:g}"
        config = compose([*own, f"seed={seed}", *camera], "simulate")
        if not events_path.exists():  # without its boxes, it is of an interrupted call, or they were deleted
            pictures.mkdir()
            for index, frame in enumerate(frames):
                write_png(pictures / f"{index:06d}.png", view.picture(frame, index)[:, :, ::-1])
            simulate(config)
    rng = np.random.default_rng(np.random.SeedSequence((seed, *name.encode())))  # as `simulate` draws it
    camera = drawn_camera(config.synthetic.camera, rng)
    with closing(open_recording(events_path, view.height, view.width)) as recording:
        events = list(recording.iterate())
    boxes = with_events(boxes, events, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(label_times_us(len(frames), fps), boxes["t"]))])
    boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    write_boxes(out / "train" / f"{name}_bbox.npy", boxes)
    return boxes


def draw(frame: np.ndarray, tracks: Sequence[Track], number: int) -> np.ndarray:
    """Return a frame with its boxes: green people, red vehicles, blue two-wheelers; grey ones are not sure."""
    picture = frame.copy()
    for _, track, box, is_sure in boxes_at(tracks, number):
        colours = (0, 255, 0), (0, 0, 255), (255, 128, 0), (160, 160, 160)
        colour = colours[track.class_id if is_sure else MOVING]
        left, top, right, bottom = box.round().astype(int).tolist()
        cv2.rectangle(picture, (left, top), (right, bottom), colour, 2 if is_sure else 1)
    return picture


def clips(folder: Path) -> list[Path]:
    """Return the videos and the folders of pictures in a folder.

    Raises:
        UserError: There are none, or the recordings of two of them would have the same names.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the folder of the clips")
    found = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in VIDEOS or path.is_dir()]
    if not found:
        raise UserError(f"{folder} has no video ({', '.join(VIDEOS)}) and no folder of pictures; give another folder")
    by_name: dict[str, Path] = {}
    for path in found:
        if (other := by_name.setdefault(name_of(path), path)) != path:
            raise UserError(f"the recordings of {other} and {path} would have the same names; rename one of the two")
    return found


def name_of(clip: Path) -> str:
    """Return how the names of the recordings of a clip begin."""
    return f"real_{clip.stem}".replace(".", "_").replace(" ", "_")


def record_clip(
    clip: Path, teacher: Teacher, teacher_name: str, options: argparse.Namespace
) -> Iterator[tuple[str, float, Boxes]]:
    """Write the recordings of a clip, except complete ones, and yield name, seconds and boxes of each."""
    source = open_video(clip, options.fps if clip.is_dir() else None, None)
    found, edges = watched(source, teacher, options.seconds, options.out / "teacher", teacher_name)
    moving = motion(source, found, edges)
    scenes = [
        {frame: np.concatenate([found[frame], moving[frame]]) for frame in found if start <= frame < end}
        for start, end in itertools.pairwise(edges)
    ]
    tracks = [track for scene in scenes for track in link(scene, source.fps)]
    stream = read_frames(source)
    reached = 0
    for k, (first, end) in enumerate(parts(edges, source.fps)):
        frames = list(itertools.islice(stream, first - reached, end - reached))
        reached = end
        mine = [track for track in tracks if track.first < end and track.end > first]
        if options.draw:
            options.draw.mkdir(parents=True, exist_ok=True)
            for number in range(first, end, max(1, round(source.fps))):
                picture = draw(frames[number - first], mine, number)
                write_png(options.draw / f"{clip.stem}_{number:05d}.png", picture[:, :, ::-1])
        for version in range(options.versions):
            name = f"{name_of(clip)}_{k:02d}_{version}"
            rng = np.random.default_rng(np.random.SeedSequence((options.seed, *name.encode())))
            view = draw_view(tuple(options.size), (source.height, source.width), end - first, source.fps, rng)
            path = options.out / "train" / f"{name}_bbox.npy"
            if path.exists():
                boxes = read_boxes(path)
            else:
                boxes = labels(mine, view, first, source.fps, source.width)
                boxes = write_recording(frames, view, boxes, source.fps, options.out, name, options.seed)
            yield name, (end - first) / source.fps, boxes


def check_seed(out: Path, seed: int) -> None:
    """Raise UserError if an earlier call wrote to `out` with another seed: its events and our boxes would not fit."""
    path = out / "teacher" / "seed.txt"
    if path.exists() and (earlier := path.read_text().strip()) != str(seed):
        raise UserError(f"{out} was begun with --seed {earlier}, not {seed}; give that seed, or another --out")
    with atomic_file(path) as staged:
        staged.write_text(f"{seed}\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, help="a folder of videos and of folders of pictures")
    parser.add_argument("--teacher", type=Path, required=True, help="the file of the detector of pictures")
    parser.add_argument("--out", type=Path, required=True, help="the tree to write, in its split train")
    parser.add_argument("--fps", type=float, help="frames per second of folders of pictures")
    parser.add_argument("--seconds", type=float, default=60, help="that are used of each clip")
    parser.add_argument("--versions", type=int, default=4, help="recordings of each part")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(240, 304), help="height and width of the sensor in pixels"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=Path, help="a folder for one picture per second with the boxes of the teacher")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, teacher: Teacher | None = None) -> int:
    options = parse(argv)
    options.out = options.out.resolve()
    try:
        seconds, counts, unsure = 0.0, np.zeros(len(SPEC.class_names), int), 0
        teacher_name = str(options.teacher.stat().st_size) if options.teacher.is_file() else ""
        teacher = teacher or open_teacher(options.teacher)
        number, found = 0, clips(options.clips)
        check_seed(options.out, options.seed)
        for clip in found:
            for name, length, boxes in record_clip(clip, teacher, teacher_name, options):
                is_sure = boxes["pseudo_score"] > 0
                counts += np.bincount(boxes["class_id"][is_sure], minlength=len(counts))
                unsure += int((boxes["pseudo_score"] < 0).sum())
                seconds, number = seconds + length, number + 1
                print(f"{name}: {is_sure.sum()} boxes")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    listed = ", ".join(f"{count} of {name}" for count, name in zip(counts, SPEC.class_names, strict=True))
    print(f"{number} recordings, {seconds:.0f} s, boxes: {listed}, {unsure} unsure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
