"""The recordings of a split as a detector will see them: at which rates, from which frames."""

from dataclasses import dataclass, replace

import numpy as np

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.frequency import is_reached, is_same_rate, true_rate
from rvtssm.evaluation.protocol import scored_labels, scoring_rules
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.records.settings import exact_us
from rvtssm.system.user_error import UserError


@dataclass(frozen=True)
class PlannedRate:
    """A rate that can be run, and the kind of its windows."""

    asked_hz: float
    hz: float  # actual rate of the steps
    step_us: float  # median step
    windows: tuple[str, ...]  # slide or shrink; both if the windows are the same


@dataclass(frozen=True)
class SplitPlan:
    """Plans the rates of a detector on a split."""

    options: EvaluationConfig
    checkpoint: LoadedCheckpoint
    data: SequenceDataModule

    @property
    def source(self) -> str:
        """Where the frames come from: raw or prepared."""
        named = self.options.source or self.data.config.source
        return named or ("raw" if self.data.config.raw_dir else "prepared")

    def plan_rates(self) -> tuple[list[PlannedRate], PlannedRate | None]:
        """Return the rates to score, and the rate of training if it is among them or is run without memory.

        With `evaluation.window=both`, the rates with the windows that suit the weights come first, and those with the
        other windows follow.

        Raises:
            UserError: A rate cannot be scored. This is known before hours of work.
        """
        options, trained_hz = self.options, self.checkpoint.windows.hz
        window, *others = self._window_kinds()
        rates = [self._plan(hz, window) for hz in options.hz or [trained_hz]]
        by_hz: dict[float, PlannedRate] = {}
        for rate in rates:
            if (other := by_hz.setdefault(rate.hz, rate)) is not rate:
                raise UserError(
                    "evaluation.same_steps",
                    f"evaluation.hz: {other.asked_hz:g} and {rate.asked_hz:g} Hz are the same steps of "
                    f"{rate.step_us / 1000:g} ms between labels; name one of them, or set evaluation.grid=free",
                )
        trained = next((rate for rate in rates if is_same_rate(rate.asked_hz, trained_hz)), None)
        if options.ablate_memory and trained is None:
            trained = self._plan(trained_hz, window)
            trained = by_hz.get(trained.hz, trained)
        # A late detector skips windows, so windows that are as long as its step then differ.
        if trained and not options.streaming and all(self._are_same_windows(trained, other) for other in others):
            shared = replace(trained, windows=(window, *others))
            rates, trained = [shared if rate is trained else rate for rate in rates], shared
        return rates + [replace(rate, windows=(o,)) for o in others for rate in rates if o not in rate.windows], trained

    def _window_kinds(self) -> list[str]:
        """Return the kinds of windows at rates other than that of training: slide, shrink, or both in order."""
        options = self.options
        if options.window != "both":
            return [options.window]
        if self.source == "prepared":  # already counted with one window length
            (sequence, *_) = self.data.sequences(options.split, "prepared")
            if sequence.settings.length_us is None:
                return ["shrink"]
            return ["slide"]
        if self.checkpoint.windows.warmup_us:  # frames do not depend on where their window begins
            return ["shrink"]
        if self.checkpoint.may_shrink_windows:
            return ["shrink", "slide"]
        return ["slide", "shrink"]

    def _are_same_windows(self, rate: PlannedRate, window: str) -> bool:
        pairs = zip(self.sequences(rate), self.sequences(replace(rate, windows=(window,))), strict=True)
        return all(np.array_equal(one.windows.bounds_us, other.windows.bounds_us) for one, other in pairs)

    def _plan(self, asked_hz: float, window: str) -> PlannedRate:
        sequences, trained = self._sequences(asked_hz, window), self.checkpoint.windows
        if not any(len(scored_labels(sequence.labels, self.checkpoint.spec)) for sequence in sequences):
            raise UserError(
                "evaluation.no_scored_box",
                f"the {self.options.split} split has no box that is scored "
                f"({scoring_rules(self.checkpoint.spec)}); choose another split, or prepare it with its labels",
            )
        # From the first label on, labels decide the steps.
        parts = [sequence.windows.dt_us[int(sequence.labels.window_index[0]) + 1 :] for sequence in sequences]
        if not any(map(len, parts)):
            parts = [sequence.windows.dt_us for sequence in sequences]
        step_us = float(np.median(np.concatenate(parts)))
        scale = self.options.step_scale or float(exact_us(step_us)) / trained.stride_us
        self.checkpoint.detector.prepare(scale)  # raises for layers that do not support this scale
        hz = true_rate(asked_hz, step_us)
        # The rate of training always runs as in training, under its actual rate, since prepared data have no other.
        if not is_reached(asked_hz, hz) and not is_same_rate(asked_hz, trained.hz):
            intervals_us = np.concatenate([np.diff(np.unique(sequence.labels.t_us)) for sequence in sequences])
            raise UserError(
                "evaluation.rate_not_reached",
                f"evaluation.hz: {asked_hz:g} Hz cannot be reached, because a window ends at every label "
                f"and labels are {np.median(intervals_us) / 1000:g} ms apart, which makes it {hz:g} Hz; ask for a "
                "rate with a whole number of steps in between, or set evaluation.grid=free",
            )
        return PlannedRate(asked_hz, hz, step_us, (window,))

    def sequences(self, rate: PlannedRate, label_hz: float | None = None) -> list[FrameSequence]:
        """Return the labelled recordings in windows at a rate.

        Args:
            rate: The rate.
            label_hz: Interpolate the labels to this rate; None keeps the annotated ones.
        """
        return self._sequences(rate.asked_hz, rate.windows[0], label_hz)

    def _sequences(self, hz: float, window: str, label_hz: float | None = None) -> list[FrameSequence]:
        settings, options = self.checkpoint.windows, self.options
        if is_same_rate(hz, settings.hz):
            hz = settings.hz
        if window == "slide" or hz != settings.hz:
            settings = settings.at_rate(hz, window)
        sequences = self.data.eval_sequences(options.split, settings, self.source, options.grid, label_hz)
        return [sequence for sequence in sequences if len(sequence.labels) or len(sequence.labels.empty_us)]
