"""Average precision of a detector at one inference rate: the definition.

For example at 200 Hz, after a training at 20 Hz: every recording is cut into a window per 5 ms. The detector runs over
all of them, with its time step multiplied by 0.1. Each label is scored with the output of the window that ends at its
time. `rvtssm.evaluation.coco` matches outputs with labels and averages precision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.detection.track_objects import TRACK_MEMORY_S
from rvtssm.evaluation.bootstrap import Interval, resample
from rvtssm.evaluation.coco import RecordingMatches, ScoredRecording, evaluate_detections, match_detections
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.latency import measured_latency_ms, newest, read_latency_ms, taken_steps
from rvtssm.evaluation.protocol import has_stood_still
from rvtssm.evaluation.result import percent_interval
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.evaluation.tracks import label_tracks, read_tracks, track_metrics
from rvtssm.records import Detections, Labels
from rvtssm.system.user_error import UserError

Ints = npt.NDArray[np.int64]


class LabelSteps(NamedTuple):
    """The step whose output is scored at each label time of a recording."""

    times_us: Ints  # (U,) ascending, times of labels with and without boxes
    steps: Ints  # (U,) -1: nothing was detected, because the label precedes every output


@dataclass(frozen=True)
class ScoredRate:
    """The row of a rate, and what it was computed from."""

    row: RateRow
    recordings: list[ScoredRecording]
    sequences: list[FrameSequence]  # as they were run
    label_steps: list[LabelSteps]
    matches: list[RecordingMatches]


def score_rate(
    run: DetectorRun, split: SplitPlan, rate: PlannedRate, seed: int = 0, is_reset: bool = False
) -> ScoredRate:
    """Return the average precision of a detector on a split at one rate.

    Every recording is cut into windows at this rate. The detector runs over them from the start of the recording and
    carries its state. Each label is scored with the output of the window that ends at its time; with streaming, with
    the newest output that is ready by then. Detections are matched with labels per recording, and precision is
    averaged over all recordings together. The intervals come from drawing recordings with replacement.

    Args:
        run: The detector, and how it runs.
        split: The recordings and the options.
        rate: The rate, and the length of its windows.
        seed: Seed of the bootstrap replicates.
        is_reset: Reset the state at every step, to see what the memory contributes.
    """
    options, spec = split.options, run.checkpoint.spec
    sequences = split.sequences(rate, options.label_hz)
    measured = {"step_ms": rate.step_us / 1000}
    if options.streaming:
        latency_ms = step_latency_ms(run, split, sequences)
        sequences, label_steps = late_steps(sequences, latency_ms, options.when_late)
        mean_step_us = float(np.concatenate([sequence.windows.dt_us for sequence in sequences]).mean())
        measured |= {"latency_ms": latency_ms, "taken_hz": 1e6 / mean_step_us}
    else:
        label_steps = [own_steps(sequence) for sequence in sequences]
    sequences = [asking(sequence, steps) for sequence, steps in zip(sequences, label_steps, strict=True)]
    outputs = run.outputs(sequences, f"evaluating {rate.hz:g} Hz", is_reset)
    recordings = scored_recordings(sequences, label_steps, outputs)

    matches = match_detections(recordings, spec)
    resampled = resample(matches, spec, options.bootstrap, seed)
    if options.track:
        tracks = read_tracks(split, recordings, sequences, label_tracks)
        measured |= track_metrics(recordings, tracks, spec, options.track, TRACK_MEMORY_S)
    row = RateRow(rate.hz, resampled.metrics, measured, resampled, rate.windows)
    return ScoredRate(row, recordings, sequences, label_steps, matches)


def score_shifts(
    run: DetectorRun, split: SplitPlan, rate: PlannedRate, shifts_ms: Sequence[float]
) -> dict[float, float]:
    """Return AP by time shift: each label is scored with the newest output at its time plus the shift.

    Args:
        run: The detector, and how it runs.
        split: The recordings and the options.
        rate: The rate.
        shifts_ms: The shifts in milliseconds.
    """
    if not shifts_ms:
        return {}
    sequences = split.sequences(rate, split.options.label_hz)
    by_shift: dict[float, list[LabelSteps]] = {}
    for ms in sorted(shifts_ms):
        by_shift[ms] = [newest_steps(sequence, sequence.windows.ends_us, round(1000 * ms)) for sequence in sequences]
    of_sequence = zip(*by_shift.values(), strict=True)
    sequences = [asking(sequence, *steps) for sequence, steps in zip(sequences, of_sequence, strict=True)]
    outputs = run.outputs(sequences, "evaluating shifts")
    ap = {}
    for ms, label_steps in by_shift.items():
        recordings = scored_recordings(sequences, label_steps, outputs)
        ap[ms] = evaluate_detections(recordings, run.checkpoint.spec, has_sizes=False)["AP"]
    return ap


def step_latency_ms(run: DetectorRun, split: SplitPlan, sequences: Sequence[FrameSequence]) -> float:
    """Return the duration of a step in milliseconds: given, read from a file, or measured on the longest recording.

    Args:
        run: The detector.
        split: The options.
        sequences: The recordings in windows at the rate.

    Raises:
        UserError: The file has no latency, or prepared recordings do not allow to measure one.
    """
    options = split.options
    if options.latency_ms is not None:
        return options.latency_ms
    if options.latency_from is not None:
        return read_latency_ms(Path(options.latency_from), run.checkpoint)
    if split.source != "raw":
        raise UserError(
            "evaluation.latency_needs_raw",
            "evaluation.streaming=true measures the latency on raw recordings; use them (evaluation.source=raw "
            "dataset.raw_dir=DIR), or give evaluation.latency_ms",
        )
    longest = max(sequences, key=lambda sequence: len(sequence.windows))
    plan = longest.source.plan  # type: ignore[union-attr]  # of a raw recording
    return measured_latency_ms(run.checkpoint, longest.source.path, plan.spec, longest.settings, run.postprocess)


def own_steps(sequence: FrameSequence) -> LabelSteps:
    """Score each label with the window that it was assigned to: the one that ends at the label, or the next one."""
    labels, windows = sequence.labels, sequence.windows
    box_us, first = np.unique(labels.t_us, return_index=True)
    empty_us = np.setdiff1d(labels.empty_us, box_us)
    empty_steps = np.minimum(np.searchsorted(windows.ends_us, empty_us), len(windows) - 1)
    empty_steps[empty_us < windows.ends_us[0] - windows.dt_us[0]] = -1
    times_us, steps = np.concatenate([box_us, empty_us]), np.concatenate([labels.window_index[first], empty_steps])
    order = np.argsort(times_us, kind="stable")
    return LabelSteps(times_us[order], steps[order])


def newest_steps(sequence: FrameSequence, known_us: npt.NDArray[np.generic], shift_us: int = 0) -> LabelSteps:
    """Score each label with the newest output that is known at its time plus a shift.

    Args:
        sequence: The recording.
        known_us: When the output of each step becomes known, ascending.
        shift_us: The shift.
    """
    times_us = np.union1d(sequence.labels.t_us, sequence.labels.empty_us)
    return LabelSteps(times_us, newest(times_us + shift_us, known_us))


def late_steps(
    sequences: Sequence[FrameSequence], latency_ms: float, when_late: str
) -> tuple[list[FrameSequence], list[LabelSteps]]:
    """Return recordings with the steps that a detector of this latency takes, and which of them labels are scored with.

    Args:
        sequences: The recordings.
        latency_ms: Duration of a step.
        when_late: See `taken_steps`.

    Raises:
        UserError: The detector would skip windows of a prepared recording.
    """
    taken, label_steps = [], []
    for sequence in sequences:
        steps, finished_us = taken_steps(sequence.windows.ends_us, 1000 * latency_ms, when_late)
        taken.append(sequence.taking(steps))
        label_steps.append(newest_steps(taken[-1], finished_us))
    return taken, label_steps


def asking(sequence: FrameSequence, *label_steps: LabelSteps) -> FrameSequence:
    """Return the recording with the scored steps as its wanted steps."""
    steps = np.unique(np.concatenate([scored.steps for scored in label_steps]))
    return replace(sequence, asked=steps[steps >= 0])


def at_labels(label_steps: LabelSteps, steps: Ints, outputs: Sequence[Detections]) -> list[Detections]:
    """Return the detections to score at each label time.

    Args:
        label_steps: Which step is scored at each label time.
        steps: (M,) the steps with outputs.
        outputs: One per step.
    """
    by_step = dict(zip(steps.tolist(), outputs, strict=True))
    by_step[-1] = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    pairs = zip(label_steps.times_us.tolist(), label_steps.steps.tolist(), strict=True)
    return [replace(by_step[step], t_us=time_us) for time_us, step in pairs]


def scored_recordings(
    sequences: Sequence[FrameSequence], label_steps: Sequence[LabelSteps], outputs: Sequence[Sequence[Detections]]
) -> list[ScoredRecording]:
    """Return labels and detections of recordings.

    Args:
        sequences: The recordings.
        label_steps: Which step of a recording is scored at each label time.
        outputs: The detections of a recording at its wanted steps.
    """
    recordings = []
    for sequence, steps, detections in zip(sequences, label_steps, outputs, strict=True):
        frames = at_labels(steps, sequence.wanted_steps, detections)
        recordings.append(ScoredRecording(sequence.name, sequence.labels, frames))
    return recordings


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
