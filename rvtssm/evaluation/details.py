"""What is said of one rate in detail: its breakdown, its worst frames, and what the memory contributes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.drawing.image_files import to_png
from rvtssm.evaluation.bootstrap import Interval
from rvtssm.evaluation.breakdown import Breakdown, break_down, track_speeds
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.protocol import has_stood_still
from rvtssm.evaluation.rates import ScoredRate, read_tracks, score_rate
from rvtssm.evaluation.result import Picture, percent_interval
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.records import DatasetSpec, Labels


@dataclass(frozen=True)
class Memory:
    """What the state contributes at the rate of training."""

    still_objects: Mapping[str, float] = field(default_factory=dict)  # AP by kind of memory: carried, reset
    without: Interval | None = None  # AP with the state reset at every step
    in_words: Mapping[str, str] = field(default_factory=dict)


def memory_at(run: DetectorRun, split: SplitPlan, trained: PlannedRate | None, scored: ScoredRate, seed: int) -> Memory:
    """Return what the state contributes; run the rate of training without memory if the options ask for it.

    Args:
        run: The detector, and how it runs.
        split: The recordings and the options.
        trained: The rate of training; None if it is not run.
        scored: The rate that is described in detail.
        seed: Seed of the bootstrap replicates.
    """
    if trained is None:
        return Memory()
    is_trained = scored.row.hz == trained.hz
    still: dict[str, float] = {}
    if is_trained and any(_stands_still(split, recording.labels).any() for recording in scored.recordings):
        still["carried"] = _still_ap(run, split, scored)
    if not split.options.ablate_memory:
        return Memory(still)
    reset = score_rate(run, split, trained, seed, is_reset=True)
    assert reset.row.resampled is not None
    without = reset.row.resampled.interval("AP")
    in_words = {"AP without memory": f"{percent_interval(without)} at {trained.hz:g} Hz, state reset at every step"}
    carried = scored.row.resampled if is_trained else None
    if carried is not None and (gain := carried.minus(reset.row.resampled, "AP")):
        in_words["AP gained by memory"] = percent_interval(gain)
    if still:
        still["reset"] = _still_ap(run, split, reset)
    return Memory(still, without, in_words)


def _still_ap(run: DetectorRun, split: SplitPlan, scored: ScoredRate) -> float:
    """Return AP on objects that stand still."""

    def only(labels: Labels) -> np.ndarray:
        return _stands_still(split, labels)

    return evaluate_detections(scored.recordings, run.checkpoint.spec, only=only, has_sizes=False)["AP"]


def _stands_still(split: SplitPlan, labels: Labels) -> np.ndarray:
    return has_stood_still(labels, round(1000 * split.options.still_ms))


def break_down_rate(split: SplitPlan, scored: ScoredRate) -> Breakdown:
    """Return the breakdown of the AP at one rate."""
    speeds = read_tracks(split, scored.recordings, scored.sequences, track_speeds)
    return break_down(scored.recordings, split.checkpoint.spec, speeds, matched=scored.matches)


def worst_pictures(breakdown: Breakdown, scored: ScoredRate, spec: DatasetSpec) -> list[Picture]:
    """Draw the worst frames with detections and ground truth.

    Args:
        breakdown: Names the worst frames.
        scored: What the breakdown was computed from.
        spec: The dataset.
    """
    number = {recording.name: place for place, recording in enumerate(scored.recordings)}
    pictures = []
    for worst in breakdown.worst:
        place = number[worst.recording]
        recording, sequence = scored.recordings[place], scored.sequences[place]
        labels = recording.labels[recording.labels.t_us == worst.t_us]
        (frame,) = (frame for frame in recording.detections if frame.t_us == worst.t_us)
        times_us, steps = scored.label_steps[place]
        step = max(0, int(steps[np.searchsorted(times_us, worst.t_us)]))  # -1 for a label before any output
        (hist,) = sequence.read(step, step + 1)
        image = draw_frame(shown_events(hist, sequence.settings), frame, labels, spec.class_names)
        caption = f"{worst.recording} at {worst.t_us / 1e6:.3f} s: {worst.num_missed} missed, {worst.num_false} false"
        pictures.append(Picture(caption, to_png(image)))
    for sequence in scored.sequences:
        sequence.close()
    return pictures
