"""The rules that decide which boxes are scored, from Prophesee's automotive datasets (Perot et al., 2020)."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.records.settings import STILL_US


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
    if spec.skip_us:
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
