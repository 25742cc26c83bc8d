"""What average precision costs: matching and averaging 2,000 images, beside pycocotools.

    python -m benchmarks.average_precision --json FILE [--images 2000] [--rounds 5]

Both get the same objects and detections and run in turns. The last digits of their numbers are compared, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import take_turns, times_faster, write_json
from benchmarks.scan import machine
from rvtssm.boxes import ltwh_to_xyxy, xyxy_to_ltwh
from rvtssm.datasets import DATASETS
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.records import Detections, Labels

SPEC = DATASETS["gen1"]
OBJECTS, DETECTIONS = 4, 20  # per image


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    recordings = [random_recording(seed, options.images // 20) for seed in range(20)]
    runs = {"ours": lambda: our_numbers(recordings), "pycocotools": lambda: numbers_of_pycocotools(recordings)}
    seconds = take_turns(runs, options.rounds)
    faster = times_faster(seconds["ours"], seconds["pycocotools"])
    is_equal = np.array_equal(runs["ours"](), runs["pycocotools"]())
    result = {"seconds": {name: median(taken) for name, taken in seconds.items()}, "times_faster": faster}
    print(f"{options.images} images: {result['seconds']} s, {faster:.1f} times faster, equal numbers: {is_equal}")
    write_json(options.json, {**machine("cpu"), "images": options.images, **result, "equal": is_equal})


def random_recording(seed: int, num_images: int) -> ScoredRecording:
    """Return a recording in which each image has objects, detections near them, and false detections."""
    rng = np.random.default_rng(seed)
    times_us = 1_000_000 + 50_000 * np.arange(num_images)
    corners = rng.uniform(0, 180, (num_images, OBJECTS, 2))
    truth = np.concatenate([corners, rng.uniform(25, 110, corners.shape)], axis=2).astype(np.float32)
    class_id = rng.integers(0, 2, (num_images, OBJECTS))
    t_us = np.repeat(times_us, OBJECTS)
    labels = Labels(truth.reshape(-1, 4), class_id.reshape(-1), t_us, np.zeros_like(t_us), np.full_like(t_us, -1))
    frames = []
    for image, time_us in enumerate(times_us):
        near = truth[image] + rng.normal(0, 6, (OBJECTS, 4))
        false = np.concatenate([rng.uniform(0, 180, (DETECTIONS, 2)), rng.uniform(25, 110, (DETECTIONS, 2))], axis=1)
        ltwh = np.concatenate([near, false[OBJECTS:]]).astype(np.float32)
        score = rng.random(DETECTIONS).astype(np.float32)
        frames.append(Detections(ltwh_to_xyxy(ltwh), score, rng.integers(0, 2, DETECTIONS), int(time_us)))
    return ScoredRecording(str(seed), labels, frames)


def our_numbers(recordings: Sequence[ScoredRecording]) -> np.ndarray:
    """Return AP, AP50, AP75 and AP by size."""
    metrics = evaluate_detections(recordings, SPEC, is_filtered=False)
    return np.array(list(metrics.values()))[:6]


def numbers_of_pycocotools(recordings: Sequence[ScoredRecording]) -> np.ndarray:
    """Return the same numbers by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images, truths, results = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for recording in recordings:
        for frame in recording.detections:
            images.append({"id": len(images) + 1})
            of_image = recording.labels[recording.labels.t_us == frame.t_us]
            for box, class_id in zip(of_image.boxes_ltwh, of_image.class_id, strict=True):
                truth = {"id": len(truths) + 1, "bbox": box.tolist(), "area": float(box[2] * box[3]), "iscrowd": 0}
                truths.append({**truth, "image_id": len(images), "category_id": int(class_id) + 1})
            for box, class_id, score in zip(xyxy_to_ltwh(frame.xyxy), frame.class_id, frame.score, strict=True):
                found = {"image_id": len(images), "category_id": int(class_id) + 1}
                results.append({**found, "bbox": box.tolist(), "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = COCO()
        truth.dataset = {"images": images, "annotations": truths, "categories": [{"id": 1}, {"id": 2}], "info": {}}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return np.array(evaluation.stats[:6])


if __name__ == "__main__":
    main()
