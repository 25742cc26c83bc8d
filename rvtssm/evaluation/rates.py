"""Average precision of a detector at one inference rate: the definition, and what else is measured at a rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.track_objects import TRACK_MEMORY_S, check_installed
from rvtssm.evaluation.bootstrap import resample
from rvtssm.evaluation.breakdown import label_tracks
from rvtssm.evaluation.coco import ScoredRecording, evaluate_detections, match_detections
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.label_steps import LabelSteps, after_latency, asking, at_labels, newest_steps, own_steps
from rvtssm.evaluation.latency import measured_latency_ms, read_latency_ms
from rvtssm.evaluation.matches import RecordingMatches
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.evaluation.tracking import track_metrics
from rvtssm.events.labels import annotated
from rvtssm.records import DatasetSpec, Labels
from rvtssm.system.user_error import UserError


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
        taken = [after_latency(sequence, latency_ms, options.when_late) for sequence in sequences]
        sequences = [sequence for sequence, _ in taken]
        label_steps = [newest_steps(sequence, finished_us) for sequence, finished_us in taken]
        mean_step_us = float(np.concatenate([sequence.windows.dt_us for sequence in sequences]).mean())
        measured |= {"latency_ms": latency_ms, "taken_hz": 1e6 / mean_step_us}
    else:
        label_steps = [own_steps(sequence) for sequence in sequences]

    sequences = [asking(sequence, steps) for sequence, steps in zip(sequences, label_steps, strict=True)]
    outputs = run.outputs(sequences, f"evaluating {rate.hz:g} Hz", is_reset)
    recordings = [
        ScoredRecording(sequence.name, sequence.labels, at_labels(steps, sequence.wanted_steps, found))
        for sequence, steps, found in zip(sequences, label_steps, outputs, strict=True)
    ]

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
    steps = [
        {ms: newest_steps(sequence, sequence.windows.ends_us, round(1000 * ms)) for ms in shifts_ms}
        for sequence in sequences
    ]
    sequences = [asking(sequence, *by_shift.values()) for sequence, by_shift in zip(sequences, steps, strict=True)]
    outputs = run.outputs(sequences, "evaluating shifts")
    ap = {}
    for ms in sorted(shifts_ms):
        recordings = [
            ScoredRecording(sequence.name, sequence.labels, at_labels(by_shift[ms], sequence.wanted_steps, found))
            for sequence, by_shift, found in zip(sequences, steps, outputs, strict=True)
        ]
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


def read_tracks(
    split: SplitPlan,
    recordings: Sequence[ScoredRecording],
    sequences: Sequence[FrameSequence],
    read: Callable[[Labels, np.ndarray, DatasetSpec], np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the result of `read` on the annotated tracks, by recording; empty for prepared data, which has no tracks.

    Args:
        split: The recordings on disk.
        recordings: Their labels.
        sequences: The same recordings.
        read: Called with the labels of a recording, its boxes on disk and its spec.
    """
    if split.source != "raw":
        return {}
    labels, spec = {recording.name: recording.labels for recording in recordings}, split.data.spec
    own = {sequence.name: sequence.source.plan.spec for sequence in sequences}  # type: ignore[union-attr]  # of raw
    return {
        raw.name: read(labels[raw.name], annotated(raw.read_boxes(spec)), own[raw.name])
        for raw in find_recordings(str(split.data.config.raw_dir), split.options.split, spec)
        if raw.name in labels
    }


def check_tracks(split: SplitPlan) -> None:
    """Raise UserError now, before hours of work, if tracks are asked for and cannot be scored."""
    options, spec = split.options, split.data.spec
    if not options.track:
        return
    check_installed(f"evaluation.track={options.track}")
    if split.source != "raw":
        raise UserError(
            "evaluation.tracks_need_raw",
            "evaluation.track needs labels with tracks, which prepared recordings do not have; use the raw "
            "recordings (evaluation.source=raw dataset.raw_dir=DIR)",
        )
    recordings = find_recordings(str(split.data.config.raw_dir), options.split, spec)
    if not any(annotated(raw.read_boxes(spec))["track_id"].any() for raw in recordings):
        raise UserError(
            "labels.no_tracks",
            f"the labels of the {options.split} split have no track_id, so tracks cannot be scored; set "
            "evaluation.track=null",
        )
