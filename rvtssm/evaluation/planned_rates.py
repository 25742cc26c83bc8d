"""The rates at which a detector can be scored on a split, each with the recordings in its windows."""

from dataclasses import dataclass, replace

import numpy as np

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.protocol import scored_labels, scoring_rules
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
                raise UserError(
                    "setting.conflict",
                    name="evaluation.hz",
                    found=f"{other.asked_hz:g} and {rate.asked_hz:g} Hz are the same steps of "
                    f"{rate.step_us / 1000:g} ms between labels",
                    advice="name one of them, or set evaluation.grid=free",
                )
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
        raise UserError(
            "labels.none_scored",
            name=f"the {run.options.split} split",
            found=f"it has no box that is scored ({scoring_rules(spec)})",
        )
    # From the first label on, labels decide the steps.
    steps_us = [sequence.windows.dt_us[sequence.label_steps[0] + 1 :] for sequence in sequences]
    if not any(map(len, steps_us)):
        steps_us = [sequence.windows.dt_us for sequence in sequences]
    step_us = float(np.median(np.concatenate(steps_us)))
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
    return float(f"{1e6 / step_us:.4g}")


def is_reached(asked_hz: float, hz: float) -> bool:
    """Return whether steps at the rate `hz` are close enough to report them as `asked_hz`."""
    return abs(hz / asked_hz - 1) <= MAX_DEVIATION
