"""Match the detections of each recording with its labels by the rules of COCO (Lin et al., 2014), as in pycocotools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.evaluation.protocol import image_times_us, is_scored
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

OVERLAPS = np.linspace(0.5, 0.95, 10)  # smallest overlaps of a match
SIZES = ("all", "small", "medium", "large")  # sizes of the objects that count
MOST_DETECTIONS = 100  # of one class in one image; the best ones are scored
_AREAS_PX = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # least and largest area, by SIZES


class ScoredRecording(NamedTuple):
    """The labels and detections of one recording. A plain tuple is accepted as well."""

    name: str
    labels: Labels  # in frame pixels, ordered by time
    detections: Sequence[Detections]  # one per frame


@dataclass(frozen=True, slots=True)
class RecordingMatches:
    """The matches of one recording's detections, ordered by class, frame and score.

    Letters: D detections, S of SIZES (all of them, or only the first), T of OVERLAPS, K classes.
    """

    name: str
    score: npt.NDArray[np.float64]  # (D,)
    class_id: Ints  # (D,)
    is_hit: Bools  # (S, T, D) the detection matches an object
    is_ignored: Bools  # (S, T, D) the detection counts as neither right nor wrong
    num_truths: Ints  # (S, K) number of objects that count


def match_detections(
    recordings: Iterable[ScoredRecording | tuple[str, Labels, Sequence[Detections]]],
    spec: DatasetSpec,
    *,
    only: Mapping[str, Bools] | None = None,
    is_filtered: bool = True,
    time_tolerance_us: int = 0,
    has_sizes: bool = True,
) -> list[RecordingMatches]:
    """Match the detections of each recording with its labels at ten overlap thresholds.

    `image_times_us` says which label times are images. A recording that occurs twice (samplers repeat recordings to
    fill up processes) counts once. A recording without an image is left out.

    Args:
        recordings: Labels and detections.
        spec: The dataset.
        only: Which labels to find, (N,) by recording. Other labels are ignored: finding or missing them does not change
            the score.
        is_filtered: Apply the rules of `rvtssm.evaluation.protocol` to labels and detections.
        time_tolerance_us: A detection belongs to every image at most this far away. With 0, there must be detections at
            exactly all label times.
        has_sizes: Also match small, medium and large objects, each for themselves.

    Raises:
        UserError: Labels are not ordered by time, or a label time has no detections.
    """
    matches = []
    by_name = {name: (labels, detections) for name, labels, detections in recordings}
    for name, (labels, detections) in by_name.items():
        if np.any(np.diff(labels.t_us) < 0):
            raise UserError("labels.unsorted", name=name)
        # The objects to find, and the images in which they count.
        is_ignored = np.zeros(len(labels), bool)
        if only is not None:
            is_ignored = ~only[name]
        times_us = image_times_us(labels, spec, is_filtered)
        if not len(times_us):
            continue
        # Objects and detections by image and class, then their matches.
        rules = spec if is_filtered else None
        truths = _truths(labels, is_ignored, times_us, rules)
        frames = _frames_of_images(name, times_us, detections, time_tolerance_us)
        boxes = _detected(frames, len(times_us), rules)
        matches.append(_matched(name, truths, boxes, len(times_us), spec.num_classes, has_sizes))
    return matches


class _Boxes(NamedTuple):
    """N boxes of the images of a recording. Boxes of one class in one image are a group."""

    ltwh: npt.NDArray[np.float64]  # (N, 4)
    area: npt.NDArray[np.float64]  # (N,)
    group: Ints  # (N,) class times the number of images plus image, ascending
    value: npt.NDArray[Any]  # (N,) the score of a detection; whether an object is ignored


def _frames_of_images(
    name: str, times_us: Ints, detections: Sequence[Detections], tolerance_us: int
) -> list[tuple[int, Detections]]:
    """Return each image with the frames at most `tolerance_us` away from it, ordered by image and time."""
    frames = sorted(detections, key=lambda frame: frame.t_us)
    frame_us = np.array([frame.t_us for frame in frames], np.int64)
    first = np.searchsorted(frame_us, times_us - tolerance_us)
    last = np.searchsorted(frame_us, times_us + tolerance_us, side="right")
    if tolerance_us == 0 and np.any(missing := first == last):
        counts = f"{np.count_nonzero(missing)} of {len(times_us)} label times"
        found = f"no detections were made at label time {times_us[missing][0]} us ({counts})"
        raise UserError("detections.missing", name=name, found=found)
    pairs = []
    for image, (start, stop) in enumerate(zip(first, last, strict=True)):
        pairs += [(image, frame) for frame in frames[start:stop]]
    return pairs


def _truths(labels: Labels, is_ignored: npt.NDArray[np.bool_], times_us: Ints, rules: DatasetSpec | None) -> _Boxes:
    """Return the objects that are scored, those of a group in order of the labels."""
    if rules is not None:
        counts = is_scored(labels.boxes_ltwh, labels.t_us, rules)
        labels = labels[counts]
        is_ignored = is_ignored[counts]
    group = labels.class_id * len(times_us) + np.searchsorted(times_us, labels.t_us)
    return _ordered(labels.boxes_ltwh, group, is_ignored, np.argsort(group, kind="stable"))


def _detected(frames: Sequence[tuple[int, Detections]], num_images: int, rules: DatasetSpec | None) -> _Boxes:
    """Return the detections that are scored: of each group the best MOST_DETECTIONS, best first."""
    if not frames:
        return _Boxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    images, found = zip(*frames, strict=True)
    lengths = list(map(len, found))
    image = np.repeat(images, lengths)
    t_us = np.repeat([frame.t_us for frame in found], lengths)

    def joined(field: str) -> Any:
        """Return an array of all frames one after the other, (N, ...)."""
        return np.concatenate([getattr(frame, field) for frame in found])

    ltwh = xyxy_to_ltwh(joined("xyxy"))
    score = joined("score").astype(np.float64)
    class_id = joined("class_id").astype(np.int64)
    group = class_id * num_images + image
    order = np.lexsort((-score, group))
    if rules is not None:
        order = order[is_scored(ltwh, t_us, rules)[order]]
    # Place of each detection within its group, best first.
    rank = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    return _ordered(ltwh, group, score, order[rank < MOST_DETECTIONS])


def _ordered(ltwh: np.ndarray, group: Ints, value: np.ndarray, order: Ints) -> _Boxes:
    exact = ltwh[order].astype(np.float64)  # in which the product of two sides is exact, as in files for COCO's tools
    return _Boxes(exact, exact[:, 2] * exact[:, 3], group[order], value[order])


def _matched(
    name: str, truths: _Boxes, detected: _Boxes, num_images: int, num_classes: int, has_sizes: bool
) -> RecordingMatches:
    # Boxes of one image and class are a group; (S, T, D) answers are filled in place.
    areas = _AREAS_PX if has_sizes else _AREAS_PX[:1]
    groups = np.arange(num_classes * num_images + 1)
    shape = len(areas), len(OVERLAPS), len(detected.value)
    is_hit = np.zeros(shape, bool)
    is_ignored = np.zeros(shape, bool)
    _match(
        *(detected.ltwh, detected.area, np.searchsorted(detected.group, groups)),
        *(truths.ltwh, truths.area, np.searchsorted(truths.group, groups), truths.value.astype(bool)),
        *(areas, np.minimum(OVERLAPS, 1 - 1e-10), is_hit, is_ignored),
    )
    # (S, N): which objects count for which size, then (S, K) their numbers.
    is_counted = ~truths.value & (truths.area >= areas[:, :1]) & (truths.area <= areas[:, 1:])
    class_id = truths.group // num_images
    num_truths = [np.bincount(class_id[counted], minlength=num_classes) for counted in is_counted]
    return RecordingMatches(
        name,
        score=detected.value,
        class_id=detected.group // num_images,
        is_hit=is_hit,
        is_ignored=is_ignored,
        num_truths=np.stack(num_truths),
    )


@jit
def _match(  # type: ignore[no-untyped-def]
    detected,
    detected_area,
    detected_first,
    truth,
    truth_area,
    truth_first,
    is_ignored,
    areas,
    overlaps,
    is_hit,
    is_left_out,
):
    """Match the detections of every group with its objects, for each size and overlap.

    Each detection, best first, takes the free object that it overlaps most, of equal ones the last. It takes an ignored
    object only if no other one overlaps it enough. A detection that takes an ignored object, or takes none and has
    another size, is left out.

    Args:
        detected: (D, 4) left, top, width, height of the detections, best first within a group.
        detected_area: (D,)
        detected_first: (G + 1,) where each group of detections begins.
        truth: (N, 4) the same of the objects.
        truth_area: (N,)
        truth_first: (G + 1,)
        is_ignored: (N,) objects of no interest.
        areas: (S, 2) least and largest area of the objects of each size.
        overlaps: (T,) least overlaps.
        is_hit: (S, T, D), filled with True where a detection takes an object.
        is_left_out: (S, T, D), filled with True where a detection is left out.
    """
    for group in range(len(detected_first) - 1):
        # The boxes of one class in one image, and (D, N) how much they overlap.
        start, stop = detected_first[group], detected_first[group + 1]
        begin = truth_first[group]
        end = truth_first[group + 1]
        iou = _overlaps(detected[start:stop], truth[begin:end])
        for size in range(len(areas)):
            # Objects of other sizes are ignored; they come last, so that the others are taken first.
            least, largest = areas[size]
            area = truth_area[begin:end]
            ignored = is_ignored[begin:end] | (area < least) | (area > largest)
            order = np.concatenate((np.flatnonzero(~ignored), np.flatnonzero(ignored)))
            for t in range(len(overlaps)):
                is_free = np.ones(end - begin, np.bool_)
                for d in range(stop - start):
                    best = -1
                    overlap = overlaps[t]
                    # The object that it overlaps most; an ignored one only if no other overlaps enough.
                    for n in order:
                        if best >= 0 and ignored[n] and not ignored[best]:
                            break
                        if is_free[n] and iou[d, n] >= overlap:
                            best = n
                            overlap = iou[d, n]
                    if best >= 0:
                        is_free[best] = False
                        is_hit[size, t, start + d] = True
                        is_left_out[size, t, start + d] = ignored[best]
                    else:
                        own = detected_area[start + d]
                        is_left_out[size, t, start + d] = own < least or own > largest


@jit
def _overlaps(detected, truth):  # type: ignore[no-untyped-def]
    """Return intersection over union (D, N) of boxes given by left, top, width, height."""
    iou = np.zeros((len(detected), len(truth)))
    for d in range(len(detected)):
        for n in range(len(truth)):
            width = min(detected[d, 2] + detected[d, 0], truth[n, 2] + truth[n, 0]) - max(detected[d, 0], truth[n, 0])
            height = min(detected[d, 3] + detected[d, 1], truth[n, 3] + truth[n, 1]) - max(detected[d, 1], truth[n, 1])
            if width > 0 and height > 0:
                common = width * height
                iou[d, n] = common / (detected[d, 2] * detected[d, 3] + truth[n, 2] * truth[n, 3] - common)
    return iou
