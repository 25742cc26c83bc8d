"""Boxes of a scene become tracks: sure ones, and unsure ones that a training ignores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rvtssm.boxes import pairwise_iou
from rvtssm.contrib.worlds.label_video.boxes import HIGH, INSIDE, MOVING, SAME_IOU, UNSURE
from rvtssm.contrib.worlds.rules import PERSON, TWO_WHEELER, VEHICLE

LEAST_OF_GROUP = 0.15  # share of a box inside another one, which may be a group then
TOUCHED = 0.05  # share of a moving thing under a sure box that explains the motion
COVERED = 0.3  # share of any box under it that explains it

LINK_IOU = 0.3  # of a track with its next box
GAP_S = 0.3  # longest time for which the teacher may miss an object
LEAST_S, LEAST_HIGH = 0.3, 3  # duration and number of high scores of a sure track
STILL_S, STILL = 1.5, 0.3  # a person who moves by less, in heights, for longer may be a thing
SMOOTHED_S = 0.08  # standard deviation of the filter over the boxes of a track


Place = tuple[int, int]  # frame, and row among its boxes


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
        frames = slice(start - self.first, end - self.first)
        return replace(self, first=start, boxes=self.boxes[frames], scores=self.scores[frames])

    def at(self, frame: float) -> np.ndarray | None:
        """Return the box at a time between two frames, or None if the track does not reach it."""
        if not self.first <= frame <= self.end - 1:
            return None
        before = min(int(frame) - self.first, max(len(self) - 2, 0))
        share = frame - self.first - before
        after = min(before + 1, len(self) - 1)
        return (1 - share) * self.boxes[before] + share * self.boxes[after]


def link(rows_at: Mapping[int, np.ndarray], fps: float) -> list[Track]:
    """Join the boxes of a scene to tracks, and return the sure and the unsure ones.

    Two boxes belong together if the tracks that run forwards in time and those that run backwards both join them.

    Args:
        rows_at: Rows (N, 6) by the number of the frame, in order.
        fps: Frames per second.
    """
    backwards = {(later, earlier) for earlier, later in _links(dict(reversed(list(rows_at.items()))), fps)}
    following = dict(pair for pair in _links(rows_at, fps) if pair in backwards)
    tracks = []
    followers = set(following.values())
    for frame, rows in rows_at.items():
        for row in range(len(rows)):
            if (frame, row) in followers:
                continue
            places = [(frame, row)]
            while places[-1] in following:
                places.append(following[places[-1]])
            tracks.append([(at, rows_at[at][number]) for at, number in places])
    return with_riders([part for track in tracks for part in _judged(track, fps)])


def _links(rows_at: Mapping[int, np.ndarray], fps: float) -> list[tuple[Place, Place]]:
    """Return which box of a frame follows which one of an earlier frame, in the order in which frames are given."""
    running: list[list[tuple[int, np.ndarray]]] = []
    last_places: list[Place] = []
    links = []
    for frame, rows in rows_at.items():
        is_near = [abs(frame - track[-1][0]) / fps <= GAP_S for track in running]
        running = list(itertools.compress(running, is_near))
        last_places = list(itertools.compress(last_places, is_near))
        expected = np.array([_expected(track, frame, fps) for track in running]).reshape(-1, 4)
        overlap = pairwise_iou(expected, rows[:, :4])
        overlap[np.array([track[-1][1][4] for track in running])[:, None] != rows[:, 4]] = 0
        free = np.ones(len(rows), bool)
        while overlap.size and overlap.max() >= LINK_IOU:
            track, row = map(int, np.unravel_index(overlap.argmax(), overlap.shape))
            overlap[track], overlap[:, row], free[row] = 0, 0, False
            links.append((last_places[track], (frame, row)))
            running[track].append((frame, rows[row]))
            last_places[track] = (frame, row)
        running += [[(frame, rows[row])] for row in np.flatnonzero(free)]
        last_places += [(frame, int(row)) for row in np.flatnonzero(free)]
    return links


def _expected(track: list[tuple[int, np.ndarray]], frame: int, fps: float) -> np.ndarray:
    """Return the box of a track in a later frame, if it moves on as it did in the last tenths of a second."""
    last, row = track[-1]
    before, earlier = next(part for part in track if abs(last - part[0]) / fps <= GAP_S)
    if last == before:
        return row[:4]
    centres = [(box[:2] + box[2:4]) / 2 for box in (earlier, row)]
    move = (centres[1] - centres[0]) / (last - before) * (frame - last)
    return row[:4] + np.tile(move, 2)


def _judged(track: list[tuple[int, np.ndarray]], fps: float) -> Iterator[Track]:
    """Yield a track with a box in every frame: a sure part, and unsure ones before and after it; or one unsure part."""
    frames = np.array([frame for frame, _ in track])
    rows = np.stack([row for _, row in track])
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
    seen = [(k, track, box) for k, track in enumerate(tracks) if (box := track.at(frame)) is not None]
    corners = np.array([box for *_, box in seen]).reshape(-1, 4)
    classes = np.array([track.class_id for _, track, _ in seen], int)
    is_sure = np.array([track.is_sure for _, track, _ in seen], bool)
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    ends = np.minimum(corners[:, None, 2:], corners[None, :, 2:])
    inner = np.prod(np.clip(ends - np.maximum(corners[:, None, :2], corners[None, :, :2]), 0, None), axis=2)
    is_smaller = (area[:, None] < area) & is_sure  # than a sure one
    is_inside = is_smaller & (inner > INSIDE * area[:, None])
    is_same = classes[:, None] == classes
    is_on_wheels = (classes == TWO_WHEELER) & ((classes == PERSON) | (classes == TWO_WHEELER))[:, None]
    is_part = is_on_wheels & is_smaller & (is_inside | (is_same & (inner > 0.4 * area[:, None])))
    for i, j in np.argwhere(is_part):
        box = seen[j][2]
        box[:2], box[2:] = np.minimum(corners[i, :2], box[:2]), np.maximum(corners[i, 2:], box[2:])
    is_covered = is_sure & ~is_sure[:, None] & ((pairwise_iou(corners, corners) > SAME_IOU) | (is_same & is_inside))
    is_explained = (inner > COVERED * area) | (is_sure & (inner > TOUCHED * area[:, None]))
    is_covered |= (classes == MOVING)[:, None] & (classes != MOVING) & is_explained
    is_kept = ~(is_part | is_covered).any(axis=1)
    is_inside &= is_kept & is_kept[:, None]
    is_group = is_inside & is_same & is_sure[:, None] & (area[:, None] > LEAST_OF_GROUP * area)
    is_in_vehicle = is_inside & ((classes == PERSON)[:, None] & (classes == VEHICLE))
    is_sure = is_sure & ~(is_group | is_in_vehicle).any(axis=1) & ~is_group.any(axis=0)
    return [(*seen[k], bool(is_sure[k])) for k in np.flatnonzero(is_kept)]
