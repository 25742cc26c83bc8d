"""The rules that decide which boxes are scored, from Prophesee's automotive datasets (Perot et al., 2020).

Beside them, the loss of accuracy at other rates than that of the training, and published rows for comparison.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.records.settings import STILL_US, is_same_rate


def is_scored(boxes_ltwh: np.ndarray, t_us: np.ndarray | int, spec: DatasetSpec) -> np.ndarray:
    """Return which boxes are scored: those later than `spec.skip_us` that are not too small.

    The same rule applies to ground truth and detections. The limits of the spec are sensor pixels and are divided by
    `downsample`.

    Args:
        boxes_ltwh: (N, 4) float32, frame pixels.
        t_us: (N,), or one time for all boxes.
        spec: The dataset.

    Returns:
        (N,) bool.
    """
    w, h = boxes_ltwh[:, 2], boxes_ltwh[:, 3]
    side = spec.min_side_px / spec.downsample
    diagonal = spec.min_diagonal_px / spec.downsample
    return (np.asarray(t_us) > spec.skip_us) & (w >= side) & (h >= side) & (w * w + h * h >= diagonal * diagonal)


def image_times_us(labels: Labels, spec: DatasetSpec, is_filtered: bool = True) -> np.ndarray:
    """Return the label times that are scored as images, ascending.

    By default these are the label times with a box that is scored, as in the toolbox of Prophesee. With
    `spec.scores_empty_images`, they are all label times after `spec.skip_us`, also those without a box, so that every
    false box costs precision.

    Args:
        labels: The labels of a recording.
        spec: The dataset.
        is_filtered: Apply the rules of this file; otherwise every label time counts.
    """
    if spec.scores_empty_images:
        times_us = np.union1d(labels.t_us, labels.empty_us)
        return times_us[times_us > spec.skip_us] if is_filtered else times_us
    return np.unique(scored_labels(labels, spec).t_us if is_filtered else labels.t_us)


def num_images_left_out(labels: Iterable[Labels], spec: DatasetSpec) -> int:
    """Return how many label times after `spec.skip_us` are not scored, because no box is left in them.

    Args:
        labels: The labels of each recording.
        spec: The dataset.
    """
    every = replace(spec, scores_empty_images=True)
    return sum(len(image_times_us(some, every)) - len(image_times_us(some, spec)) for some in labels)


def scored_labels(labels: Labels, spec: DatasetSpec) -> Labels:
    """Return the labels that are scored, in the same order."""
    return labels[is_scored(labels.boxes_ltwh, labels.t_us, spec)]


def num_scored(labels: Iterable[Labels], spec: DatasetSpec) -> int:
    """Return how many labels are scored.

    Args:
        labels: The labels of each recording.
        spec: The dataset.
    """
    return sum(len(scored_labels(some, spec)) for some in labels)


def scored_detections(detections: Detections, spec: DatasetSpec) -> Detections:
    """Return the detections of one frame that are scored, in the same order."""
    return detections[is_scored(xyxy_to_ltwh(detections.xyxy), detections.t_us, spec)]


def has_stood_still(labels: Labels, min_us: int = STILL_US) -> np.ndarray:
    """Return which objects have not moved for at least `min_us` microseconds.

    Args:
        labels: N labels.
        min_us: The shortest time without motion.

    Returns:
        (N,) bool, False if the time is unknown.
    """
    return labels.still_us >= min_us


def scoring_rules(spec: DatasetSpec) -> str:
    """Return the rules in this file as one sentence for a report."""
    side = spec.min_side_px / spec.downsample
    diagonal = spec.min_diagonal_px / spec.downsample
    # What the protocol leaves out.
    limits = []
    if spec.skip_us > 0:
        limits.append(f"up to {spec.skip_us / 1e6:g} s")
    if side:
        limits.append(f"with a side under {side:g} px")
    if diagonal:
        limits.append(f"with a diagonal under {diagonal:g} px")
    frame = f"{spec.frame_width} x {spec.frame_height} frame"
    boxes = f"all boxes ({frame}); "
    if limits:
        boxes = f"boxes and detections {' or '.join(limits)} ({frame}) are left out; "
    images = "only label times with a remaining box are scored; "
    if spec.scores_empty_images:
        images = "label times without a box are scored as well; "
    return boxes + images + "per frame the best 100 detections of each class, as in COCO"


REFERENCE_HZ = 20.0  # the rate at which the published models are trained

# AP in percent at 20 / 40 / 80 / 100 / 200 Hz, trained at 20 Hz: Zubic et al., CVPR 2024, and the papers it cites
PUBLISHED_HZ = (20.0, 40.0, 80.0, 100.0, 200.0)
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "gen1": {
        "RVT": (47.16, 35.13, 21.98, 18.61, 8.35),
        "S5-ViT-B": (47.71, 46.44, 45.08, 42.49, 39.84),
        "GET": (47.90, 34.15, 19.97, 15.13, 5.35),
    },
    "onempx": {
        "RVT": (47.40, 42.51, 33.20, 30.29, 18.15),
        "S5-ViT-B": (47.80, 46.49, 46.11, 45.80, 39.70),
        "GET": (48.40, 40.51, 30.30, 28.11, 15.44),
    },
}


def performance_drop(value_by_hz: Mapping[float, float], reference_hz: float = REFERENCE_HZ) -> float:
    """Return the value at the reference rate minus the mean over all other rates, in the unit of the values.

    Args:
        value_by_hz: The values by rate.
        reference_hz: The reference rate.

    Returns:
        NaN if the reference rate or every other rate is missing.
    """
    reference = []
    others = []
    for hz, value in value_by_hz.items():
        if is_same_rate(hz, reference_hz):
            reference.append(value)
        else:
            others.append(value)
    if not reference or not others:
        return math.nan
    return reference[0] - sum(others) / len(others)


def published_rows(dataset: str) -> dict[str, dict[float, float]]:
    """Return the published AP by model and rate, in [0, 1]; empty for a dataset without published numbers."""
    rows = {}
    for model, percents in PUBLISHED.get(dataset, {}).items():
        rows[model] = {hz: percent / 100 for hz, percent in zip(PUBLISHED_HZ, percents, strict=True)}
    return rows
