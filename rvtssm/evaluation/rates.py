"""Average precision of a detector at one inference rate: the definition, and the rates at which a split can be scored.

For example at 200 Hz, after a training at 20 Hz: every recording is cut into a window per 5 ms. The detector runs over
all of them, with its time step multiplied by 0.1. Each label is scored with the output of the window that ends at its
time. `plan_rates` makes the windows of a rate: one ends at each label, and the time between two labels is cut into
equal strides, as near to that of the rate as possible (`label_grid` of `events/windows.py`). Windows are as long as in
the training (slide) or as the stride (shrink). `score_rate` lets the detector run (`detector_run.py`): `Streams`
divides each stride by that of the training, which gives the step scale, and carries the state through the recording.
`matching.py` drops boxes that are too small or too early, as Prophesee does (`protocol.py`), and matches outputs with
labels. `coco.py` averages precision over all recordings at once; `resample` there adds the confidence intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rvtssm.datasets.sequence import FrameSequence, steps_of
from rvtssm.detection.track_objects import TRACK_MEMORY_S
from rvtssm.evaluation.coco import Interval, Resampled, evaluate_detections, resample
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.latency import Ints, LabelSteps, late_steps, newest_steps, step_latency_ms
from rvtssm.evaluation.matching import RecordingMatches, ScoredRecording, match_detections
from rvtssm.evaluation.protocol import has_stood_still, scored_labels, scoring_rules
from rvtssm.evaluation.report import Row, in_hz, only_ap, percent_interval, rounded_hz, to_row
from rvtssm.evaluation.tracks import label_tracks, read_tracks, track_metrics
from rvtssm.records import Detections, Labels
from rvtssm.records.settings import exact_us, is_same_rate
from rvtssm.system.user_error import UserError

MAX_DEVIATION = 0.05  # largest relative deviation of the actual rate from the requested one


@dataclass(frozen=True, eq=False)
class PlannedRate:
    """A rate that can be run, and the recordings in windows at this rate."""

    asked_hz: float
    hz: float  # actual rate of the steps
    step_us: float  # median step
    windows: tuple[str, ...]  # slide or shrink; both if the windows are the same
    sequences: list[FrameSequence]  # with the labels that are scored


def plan_rates(run: DetectorRun) -> tuple[list[PlannedRate], PlannedRate | None]:
    """Return the rates to score, and the rate of training if it is among them or is run without memory.

    With `evaluation.window=both`, the rates with the windows that suit the weights come first, and those with the
    other windows follow.

    Raises:
        UserError: A rate cannot be scored. This is known before hours of work.
    """
    options = run.options
    trained_hz = run.checkpoint.windows.hz
    # Every rate with the windows that suit the weights; no two may be the same steps.
    window, *others = _window_kinds(run)
    rates: list[PlannedRate] = []
    for hz in options.hz or [trained_hz]:
        rate = _planned(run, hz, window)
        for other in rates:
            if other.hz == rate.hz:
                steps = f"steps of {rate.step_us / 1000:g} ms between labels"
                found = f"{other.asked_hz:g} and {rate.asked_hz:g} Hz are the same {steps}"
                advice = "name one of them, or set evaluation.grid=free"
                raise UserError("setting.conflict", name="evaluation.hz", found=found, advice=advice)
        rates.append(rate)
    trained = next((rate for rate in rates if is_same_rate(rate.asked_hz, trained_hz)), None)
    if options.ablate_memory and trained is None:
        planned = _planned(run, trained_hz, window)
        trained = next((rate for rate in rates if rate.hz == planned.hz), planned)

    # The same rates with the other windows; where these are the same windows, the rate is run once for both.
    first = list(rates)
    for other_window in others:
        for place, rate in enumerate(first):
            sequences = _sequences(run, rate.asked_hz, other_window)
            # A late detector skips windows, so windows that are as long as its step then differ.
            if rate is trained and not options.streaming and _are_same_windows(rate.sequences, sequences):
                trained = rates[place] = replace(rate, windows=(*rate.windows, other_window))
            else:
                rates.append(replace(rate, windows=(other_window,), sequences=sequences))
    return rates, trained


def _window_kinds(run: DetectorRun) -> list[str]:
    """Return the kinds of windows at rates other than that of training: slide, shrink, or both in order."""
    if run.options.window != "both":
        return [run.options.window]
    if run.source == "prepared":  # already counted with one window length
        first = run.data.sequences(run.options.split, "prepared")[0]
        return ["shrink" if first.settings.length_us is None else "slide"]
    if run.checkpoint.windows.warmup_us:  # frames do not depend on where their window begins
        return ["shrink"]
    if run.checkpoint.may_shrink_windows:
        return ["shrink", "slide"]
    return ["slide", "shrink"]


def _are_same_windows(sequences: list[FrameSequence], others: list[FrameSequence]) -> bool:
    pairs = zip(sequences, others, strict=True)
    return all(np.array_equal(one.windows.bounds_us, other.windows.bounds_us) for one, other in pairs)


def _planned(run: DetectorRun, asked_hz: float, window: str) -> PlannedRate:
    """Return a rate with the recordings in its windows.

    Raises:
        UserError: No box is scored, or the labels do not allow the rate.
    """
    checkpoint = run.checkpoint
    spec = run.checkpoint.spec
    sequences = _sequences(run, asked_hz, window, is_annotated=True)
    if not any(len(scored_labels(sequence.labels, spec)) for sequence in sequences):
        found = f"it has no box that is scored ({scoring_rules(spec)})"
        raise UserError("labels.none_scored", name=f"the {run.options.split} split", found=found)
    # From the first label on, labels decide the steps.
    steps_us = np.concatenate([sequence.windows.dt_us[sequence.label_steps[0] + 1 :] for sequence in sequences])
    if not len(steps_us):
        steps_us = steps_of(sequences)
    step_us = float(np.median(steps_us))
    # Layers may refuse the scale, and labels the rate.
    scale = run.options.step_scale or float(exact_us(step_us)) / checkpoint.windows.stride_us
    checkpoint.detector.prepare(scale)  # raises for layers that do not support this scale
    hz = true_rate(asked_hz, step_us)
    # The rate of training always runs as in training, under its actual rate, since prepared data have no other.
    if not is_reached(asked_hz, hz) and not is_same_rate(asked_hz, checkpoint.windows.hz):
        intervals_us = np.concatenate([np.diff(np.unique(sequence.labels.t_us)) for sequence in sequences])
        raise UserError(
            "setting.conflict",
            name="evaluation.hz",
            found=f"{asked_hz:g} Hz cannot be reached, because a window ends at every label and labels are "
            f"{np.median(intervals_us) / 1000:g} ms apart, which makes it {hz:g} Hz",
            advice="ask for a rate with a whole number of steps in between, or set evaluation.grid=free",
        )
    if run.options.label_hz is not None:
        sequences = _sequences(run, asked_hz, window)
    return PlannedRate(asked_hz, hz, step_us, (window,), sequences)


def _sequences(run: DetectorRun, hz: float, window: str, is_annotated: bool = False) -> list[FrameSequence]:
    """Return the labelled recordings in windows at a rate; their labels are interpolated if the options ask for it."""
    settings = run.checkpoint.windows
    options = run.options
    if is_same_rate(hz, settings.hz):
        hz = settings.hz
    if window == "slide" or hz != settings.hz:
        settings = settings.at_rate(hz, window)
    label_hz = None if is_annotated else options.label_hz
    sequences = run.data.eval_sequences(options.split, settings, run.source, options.grid, label_hz)
    return [sequence for sequence in sequences if len(sequence.labels) or len(sequence.labels.empty_us)]


def true_rate(asked_hz: float, step_us: float) -> float:
    """Return the rate of steps of `step_us`, to four digits; `asked_hz` itself if both are equal up to rounding."""
    if is_same_rate(1e6 / step_us, asked_hz):
        return asked_hz
    return rounded_hz(1e6 / step_us)


def is_reached(asked_hz: float, hz: float) -> bool:
    """Return whether steps at the rate `hz` are close enough to report them as `asked_hz`."""
    return abs(hz / asked_hz - 1) <= MAX_DEVIATION


@dataclass(frozen=True)
class ScoredRate:
    """The rows of a rate, one per kind of windows, and what they were computed from."""

    hz: float
    rows: list[Row]
    resampled: Resampled  # AP with its replicates
    recordings: list[ScoredRecording]
    sequences: list[FrameSequence]  # as they were run
    label_steps: list[LabelSteps]
    matches: list[RecordingMatches]


def score_rate(run: DetectorRun, rate: PlannedRate, seed: int = 0, is_reset: bool = False) -> ScoredRate:
    """Return the average precision of a detector on a split at one rate.

    Every recording is cut into windows at this rate. The detector runs over them from the start of the recording and
    carries its state. Each label is scored with the output of the window that ends at its time; with streaming, with
    the newest output that is ready by then. Detections are matched with labels per recording, and precision is
    averaged over all recordings together. The intervals come from drawing recordings with replacement.

    Args:
        run: The detector on the split.
        rate: The rate, and the length of its windows.
        seed: Seed of the bootstrap replicates.
        is_reset: Reset the state at every step, to see what the memory contributes.
    """
    options = run.options
    spec = run.checkpoint.spec
    sequences = rate.sequences
    measured = {"step_ms": rate.step_us / 1000}
    if options.streaming:
        latency_ms = step_latency_ms(run, sequences)
        sequences, label_steps = late_steps(sequences, latency_ms, options.when_late)
        mean_step_us = float(steps_of(sequences).mean())
        measured |= {"latency_ms": latency_ms, "taken_hz": 1e6 / mean_step_us}
    else:
        label_steps = [*map(own_steps, sequences)]
    sequences = [*map(asking, sequences, label_steps)]
    # The only run of the detector at this rate.
    outputs = run.outputs(sequences, f"evaluating {rate.hz:g} Hz", is_reset)
    recordings = scored_recordings(sequences, label_steps, outputs)

    matches = match_detections(recordings, spec)
    resampled = resample(matches, spec, options.bootstrap, seed)
    if options.track:
        tracks = read_tracks(run, recordings, sequences, label_tracks)
        measured |= track_metrics(recordings, tracks, spec, options.track, TRACK_MEMORY_S)
    # At the rate of the training, both kinds of windows are the same.
    rows = [to_row(rate.hz, window, resampled, measured) for window in rate.windows]
    return ScoredRate(rate.hz, rows, only_ap(resampled), recordings, sequences, label_steps, matches)


def score_shifts(run: DetectorRun, rate: PlannedRate, shifts_ms: Sequence[float]) -> dict[float, float]:
    """Return AP by time shift: each label is scored with the newest output at its time plus the shift.

    Args:
        run: The detector on the split.
        rate: The rate.
        shifts_ms: The shifts in milliseconds.
    """
    if not shifts_ms:
        return {}
    sequences = rate.sequences
    by_shift: dict[float, list[LabelSteps]] = {}
    for ms in sorted(shifts_ms):
        by_shift[ms] = [newest_steps(sequence, sequence.windows.ends_us, round(1000 * ms)) for sequence in sequences]
    sequences = [*map(asking, sequences, *by_shift.values())]
    outputs = run.outputs(sequences, "evaluating shifts")
    ap = {}
    for ms, label_steps in by_shift.items():
        recordings = scored_recordings(sequences, label_steps, outputs)
        ap[ms] = evaluate_detections(recordings, run.checkpoint.spec, has_sizes=False)["AP"]
    return ap


def own_steps(sequence: FrameSequence) -> LabelSteps:
    """Score each label with the window that it was assigned to: the one that ends at the label, or the next one."""
    # Label times with boxes know their window.
    labels = sequence.labels
    windows = sequence.windows
    box_us, first = np.unique(labels.t_us, return_index=True)
    empty_us = np.setdiff1d(labels.empty_us, box_us)
    empty_steps = np.minimum(np.searchsorted(windows.ends_us, empty_us), len(windows) - 1)
    empty_steps[empty_us < windows.ends_us[0] - windows.dt_us[0]] = -1
    # Both kinds of label times in order.
    times_us = np.concatenate([box_us, empty_us])
    steps = np.concatenate([labels.window_index[first], empty_steps])
    order = np.argsort(times_us, kind="stable")
    return LabelSteps(times_us[order], steps[order])


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


def memory_at(run: DetectorRun, trained: PlannedRate | None, scored: ScoredRate, seed: int) -> Memory:
    """Return what the state contributes; run the rate of training without memory if the options ask for it.

    Args:
        run: The detector on the split.
        trained: The rate of training; None if it is not run.
        scored: The rate that is described in detail.
        seed: Seed of the bootstrap replicates.
    """
    if trained is None:
        return Memory()
    # AP on objects that stand still needs the memory most.
    is_trained = scored.hz == trained.hz
    still: dict[str, float] = {}
    if is_trained and any(_stands_still(run, recording.labels).any() for recording in scored.recordings):
        still["carried"] = _still_ap(run, scored)
    if not run.options.ablate_memory:
        return Memory(still)
    # The same rate, with the state reset at every step.
    reset = score_rate(run, trained, seed, is_reset=True)
    without = reset.resampled.interval("AP")
    in_words = {"AP without memory": f"{percent_interval(without)} at {in_hz(trained.hz)}, state reset at every step"}
    if is_trained and (gain := scored.resampled.minus(reset.resampled, "AP")):
        in_words["AP gained by memory"] = percent_interval(gain)
    if still:
        still["reset"] = _still_ap(run, reset)
    return Memory(still, without, in_words)


def _still_ap(run: DetectorRun, scored: ScoredRate) -> float:
    """Return AP on objects that stand still."""
    only = {recording.name: _stands_still(run, recording.labels) for recording in scored.recordings}
    return evaluate_detections(scored.recordings, run.checkpoint.spec, only=only, has_sizes=False)["AP"]


def _stands_still(run: DetectorRun, labels: Labels) -> np.ndarray:
    return has_stood_still(labels, round(1000 * run.options.still_ms))
