"""One detector on one split: average precision at every rate, with intervals, latency, tracks and pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.stream import check_causal
from rvtssm.detection.track_objects import check_installed
from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.drawing.image_files import to_png
from rvtssm.evaluation.bootstrap import Resampled, resample
from rvtssm.evaluation.breakdown import Breakdown, break_down, label_tracks, track_speeds
from rvtssm.evaluation.coco import ScoredRecording, evaluate_detections, match_detections
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.latency import measured_latency_ms, read_latency_ms
from rvtssm.evaluation.matches import RecordingMatches
from rvtssm.evaluation.protocol import has_stood_still, num_scored, scoring_rules
from rvtssm.evaluation.result import EvaluationReport, Picture, percent_interval
from rvtssm.evaluation.split_plan import PlannedRate
from rvtssm.evaluation.split_runs import Pass, SplitRuns
from rvtssm.evaluation.tracking import track_metrics
from rvtssm.events.labels import annotated
from rvtssm.models.parts import head_class
from rvtssm.records import SHOWN_SCORE, DatasetSpec, Labels
from rvtssm.system.provenance import written_by
from rvtssm.system.user_error import UserError

_USUAL_SHIFTS_MS = (-200, -150, -100, -50, 0, 50, 100, 150, 200)


def measure(
    runs: SplitRuns, seed: int = 0, tell_plan: Callable[[list[PlannedRate]], None] = lambda rates: None
) -> EvaluationReport:
    """Evaluate one checkpoint at all rates, with pictures of the worst frames.

    Args:
        runs: The detector, the split and the rates.
        seed: Seed of the bootstrap replicates.
        tell_plan: Called once with the planned rates, before the first is run.
    """
    options, checkpoint = runs.options, runs.checkpoint
    spec, trained_hz = checkpoint.spec, checkpoint.windows.hz

    def stands_still(labels: Labels) -> np.ndarray:
        return has_stood_still(labels, round(1000 * options.still_ms))

    def resampled_from(matched: list[RecordingMatches]) -> Resampled:
        return resample(matched, spec, options.bootstrap, seed)

    if options.track:
        _check_tracks(runs)
    rates, trained = runs.plan_rates()
    tell_plan(rates)
    run = [*rates, trained] if trained and trained not in rates else rates
    latencies = _latencies(runs, run) if options.streaming else {}
    broken_down = trained if trained in rates else rates[0]
    passes = [Pass(rate, latencies.get(rate)) for rate in rates]
    if options.ablate_memory and trained:
        passes.append(Pass(trained, latencies.get(trained), is_reset=True))
    runs.run(passes)
    rows, still, gained, without_memory = [], {}, {}, None
    for rate in rates:
        latency_ms = latencies.get(rate)
        recordings, sequences = runs.scored(Pass(rate, latency_ms))
        if rate is rates[0]:
            num_boxes = num_scored((recording.labels for recording in recordings), spec)
        measured = {"step_ms": rate.step_us / 1000}
        if latency_ms is not None:
            dt_us = np.concatenate([sequence.windows.dt_us for sequence in sequences])
            measured |= {"latency_ms": latency_ms, "taken_hz": 1e6 / float(dt_us.mean())}
        if options.track:
            tracks = _read_tracks(runs, recordings, sequences, label_tracks)
            measured |= track_metrics(recordings, tracks, spec, options.track, options.track_memory_s)
        matched = match_detections(recordings, spec)
        resampled = resampled_from(matched)
        rows.append(RateRow(rate.hz, resampled.metrics, measured, resampled, rate.windows))
        if rate is broken_down:
            speeds = _read_tracks(runs, recordings, sequences, track_speeds)
            breakdown = break_down(recordings, spec, speeds, matched=matched)
            pictures = worst_pictures(breakdown, recordings, sequences, spec)
        if rate is trained and any(stands_still(recording.labels).any() for recording in recordings):
            still["carried"] = evaluate_detections(recordings, spec, only=stands_still, has_sizes=False)["AP"]
    if options.ablate_memory and trained:
        recordings, _ = runs.scored(passes[-1])
        reset = resampled_from(match_detections(recordings, spec))
        without_memory = reset.interval("AP")
        gained["AP without memory"] = (
            f"{percent_interval(without_memory)} at {trained.hz:g} Hz, state reset at every step"
        )
        carried = next((row.resampled for row in rows if row.hz == trained.hz), None)
        if carried and (gain := carried.minus(reset, "AP")):
            gained["AP gained by memory"] = percent_interval(gain)
        if still:
            still["reset"] = evaluate_detections(recordings, spec, only=stands_still, has_sizes=False)["AP"]
    if options.streaming:
        gained["best rate"] = _best_rate(rows, options.latency_ms is None and options.latency_from is None)
    program = written_by()
    commit = f", commit {program['commit']}" if program["commit"] else ""
    return EvaluationReport(
        title=", ".join(
            [
                f"{spec.name} {options.split}",
                f"{checkpoint.model_config.size} {checkpoint.temporal_config.name}",
                *(["free grid"] if options.grid == "free" else []),
                *(["streaming"] if options.streaming else []),
                *([f"labels interpolated to {options.label_hz:g} Hz"] if options.label_hz else []),
            ]
        ),
        dataset=spec.name,
        rows=tuple(row for row in rows if rates[0].windows[0] in row.windows),
        others=tuple(row for row in rows if rates[0].windows[0] not in row.windows),
        settings={
            **_conditions(runs, rates, num_boxes),
            **gained,
            "intervals": resampled.sentence(),
            "made by": f"rvtssm {program['rvtssm']}{commit}, {program['date']}",
            "weights SHA-256": runs.weights.sha256,
        },
        reference_hz=trained.hz if trained else trained_hz,
        still_objects=still,
        without_memory=without_memory,
        breakdown=breakdown,
        worst=pictures,
        time_shifts=_time_shifts(runs, broken_down),
    )


def _latencies(runs: SplitRuns, rates: Sequence[PlannedRate]) -> dict[PlannedRate, float]:
    """Return the duration of a step by rate, in milliseconds."""
    check_causal(runs.checkpoint.detector)
    found = {}
    for rate in rates:
        sequences = runs.sequences(rate)
        found[rate] = _latency(runs, sequences)
        runs.streamed(sequences, found[rate])  # raises an error now rather than after hours of work
    return found


def _latency(runs: SplitRuns, sequences: Sequence[FrameSequence]) -> float:
    options = runs.options
    if options.latency_ms is not None:
        return options.latency_ms
    if options.latency_from is not None:
        return read_latency_ms(Path(options.latency_from), runs.checkpoint)
    if runs.source != "raw":
        raise UserError(
            "evaluation.streaming=true measures the latency on raw recordings; use them (evaluation.source=raw "
            "dataset.raw_dir=DIR), or give evaluation.latency_ms"
        )
    longest = max(sequences, key=lambda sequence: len(sequence.windows))
    plan = longest.source.plan  # type: ignore[union-attr]  # of a raw recording
    how = longest.source.path, plan.spec, longest.settings, runs.postprocess
    return runs.kept_latency_ms(longest, lambda: measured_latency_ms(runs.checkpoint, *how))


def _best_rate(rows: Sequence[RateRow], is_measured: bool) -> str:
    """Describe at which rate the streaming accuracy is highest."""
    best = max(rows, key=lambda row: row.metrics["AP"])
    where = "on this machine" if is_measured else f"with {best.extra['latency_ms']:g} ms per step"
    found = best.resampled.interval("AP") if best.resampled else None
    windows = f", window={best.windows[0]}" if len({row.windows for row in rows}) > 1 else ""
    return f"best {where}: {best.hz:g} Hz{windows}" + (f", AP {percent_interval(found)}" if found else "")


def _time_shifts(runs: SplitRuns, rate: PlannedRate) -> dict[float, float]:
    """Return AP by time shift in milliseconds; empty if no shifts are evaluated."""
    options, spec = runs.options, runs.checkpoint.spec
    shifts = options.time_shifts_ms
    if shifts is None:
        shifts = list(_USUAL_SHIFTS_MS) if options.streaming else []
    if not shifts:
        return {}
    scored = runs.scored_with_shifts(rate, sorted(shifts))
    return {shift: evaluate_detections(recordings, spec, has_sizes=False)["AP"] for shift, recordings in scored.items()}


def _read_tracks(
    runs: SplitRuns,
    recordings: list[ScoredRecording],
    sequences: list[FrameSequence],
    read: Callable[[Labels, np.ndarray, DatasetSpec], np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the result of `read` on the tracks of labels, by recording; empty for prepared data without tracks."""
    if runs.source != "raw":
        return {}
    labels, spec = {recording.name: recording.labels for recording in recordings}, runs.data.spec
    own = {each.name: each.source.plan.spec for each in sequences}  # type: ignore[union-attr]  # of raw recordings
    return {
        raw.name: read(labels[raw.name], annotated(raw.read_boxes(spec)), own[raw.name])
        for raw in find_recordings(str(runs.data.config.raw_dir), runs.options.split, spec)
        if raw.name in labels
    }


def _check_tracks(runs: SplitRuns) -> None:
    """Raise UserError now, before hours of work, if tracks cannot be scored."""
    options = runs.options
    check_installed(f"evaluation.track={options.track}")
    if runs.source != "raw":
        raise UserError(
            "evaluation.track needs labels with tracks, which prepared recordings do not have; use the raw "
            "recordings (evaluation.source=raw dataset.raw_dir=DIR)"
        )
    found = find_recordings(str(runs.data.config.raw_dir), options.split, runs.data.spec)
    if not any(annotated(raw.read_boxes(runs.data.spec))["track_id"].any() for raw in found):
        raise UserError(
            f"the labels of the {options.split} split have no track_id, so tracks cannot be scored; set "
            "evaluation.track=null"
        )


def worst_pictures(
    breakdown: Breakdown, recordings: list[ScoredRecording], sequences: list[FrameSequence], spec: DatasetSpec
) -> list[Picture]:
    """Draw the worst frames with detections and ground truth.

    Args:
        breakdown: Names the worst frames.
        recordings: Labels and detections.
        sequences: The frames of the same recordings.
        spec: The dataset.
    """
    by_name = {recording.name: (recording, sequence) for recording, sequence in zip(recordings, sequences, strict=True)}
    pictures = []
    for worst in breakdown.worst:
        recording, sequence = by_name[worst.recording]
        labels = recording.labels[recording.labels.t_us == worst.t_us]
        (frame,) = (frame for frame in recording.detections if frame.t_us == worst.t_us)
        step = max(0, int(labels.window_index[0]))  # -1 for a label before any output
        (hist,) = sequence.read(step, step + 1)
        image = draw_frame(shown_events(hist, sequence.settings), frame, labels, spec.class_names)
        caption = f"{worst.recording} at {worst.t_us / 1e6:.3f} s: {worst.num_missed} missed, {worst.num_false} false"
        pictures.append(Picture(caption, to_png(image)))
    for sequence in sequences:
        sequence.close()
    return pictures


def _conditions(runs: SplitRuns, rates: Sequence[PlannedRate], num_boxes: int) -> dict[str, str]:
    """Describe everything that decides the numbers of an evaluation."""
    checkpoint, rules = runs.checkpoint, runs.options
    run = {rate.asked_hz: rate.hz for rate in rates if rate.hz != rate.asked_hz}
    grid = "every label time ends a window" + "".join(
        f"; {hz:g} Hz was run for {asked:g} Hz" for asked, hz in run.items()
    )
    if rules.grid == "free":
        grid = "free grid: the exact rate from the first event on"
        grid += "" if rules.streaming else ", each label scored at the next window end"
    found = {
        "weights": f"{runs.weights.path}, trained at {checkpoint.windows.hz:g} Hz",
        "score": head_class(checkpoint.model_config).describe_scores(runs.postprocess),
        "scored": f"{num_boxes} boxes; {scoring_rules(checkpoint.spec)}",
        "windows": f"{' and '.join(dict.fromkeys(kind for rate in rates for kind in rate.windows))}, "
        f"counted from {runs.source} data, "
        f"convention {checkpoint.windows.convention}, {grid}",
        "time step": "window end to window end over the stride of training"
        if rules.step_scale is None
        else f"{rules.step_scale:g} whatever the rate",
        "memory": rules.memory or checkpoint.model_config.memory,
        "still objects": f"no motion for {rules.still_ms:g} ms or more, where labels tell; all other boxes are ignored",
    }
    if checkpoint.temporal_config.bidirectional:
        chunk = runs.data.data.eval_chunk_length
        found["memory"] += f", and events after the label, to the end of each chunk of {chunk} steps"
    if runs.classes is not None:
        names = [name for number, name in enumerate(checkpoint.spec.class_names) if number not in runs.classes]
        found["classes"] = f"of the weights by evaluation.class_map={rules.class_map}" + (
            f"; the weights do not know {', '.join(names)}, whose boxes all count as missed" if names else ""
        )
    if rules.label_hz is not None:
        found["labels"] = f"interpolated linearly along tracks to {rules.label_hz:g} Hz; only some were annotated"
    if rules.track is not None:
        found["tracks"] = (
            f"{rules.track} on the outputs at label times, from a score of {SHOWN_SCORE:g}; an object that is not "
            f"found is remembered for {rules.track_memory_s:g} s; HOTA, MOTA and IDF1 over the labels with a track"
        )
    if rules.streaming:
        late = "takes the newest window" if rules.when_late == "skip" else "takes every window in order"
        told = "given" if rules.latency_ms is not None else rules.latency_from or "measured on this machine"
        found["streaming"] = (
            f"each label is scored with the newest output that had finished; time of a step: {told}; a detector that "
            f"is late {late}"
        )
    return found
