"""The recordings of a split through a detector: at which rates, from which frames, and what is scored at each label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rvtssm.config import Config
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.coco import ScoredRecording
from rvtssm.evaluation.frequency import is_reached, is_same_rate, nearest_rates, true_rate
from rvtssm.evaluation.pairing import newest, paired, requests, taken_steps
from rvtssm.evaluation.protocol import scored_labels, scoring_rules
from rvtssm.inference.stream import stream
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.records import Detections


@dataclass(frozen=True)
class PlannedRate:
    """A rate that can be run."""

    asked_hz: float
    hz: float  # of its steps
    step_us: float  # median of its steps


@dataclass(frozen=True)
class SplitRuns:
    """Runs a detector over a split, with the settings of `config.evaluation`."""

    config: Config
    checkpoint: LoadedCheckpoint
    data: SequenceDataModule

    @property
    def source(self) -> str:
        """Where the frames come from: raw or prepared."""
        named = self.config.evaluation.source or self.config.dataset.source
        return named or ("raw" if self.data.config.raw_dir else "prepared")

    def plan_rates(self) -> tuple[list[PlannedRate], PlannedRate | None]:
        """Return the rates to score, and the one of training if it is among them or is run without memory.

        Raise ValueError, before hours of work, if a rate cannot be scored.
        """
        options, trained_hz = self.config.evaluation, self.checkpoint.windows.hz
        rates = [self._plan(hz) for hz in options.frequencies_hz or [trained_hz]]
        by_hz: dict[float, PlannedRate] = {}
        for rate in rates:
            if (other := by_hz.setdefault(rate.hz, rate)) is not rate:
                raise ValueError(
                    f"evaluation.frequencies_hz: {other.asked_hz:g} and {rate.asked_hz:g} Hz are the same steps of "
                    f"{rate.step_us / 1000:g} ms between labels; name one of them, or set evaluation.grid=free"
                )
        trained = next((rate for rate in rates if is_same_rate(rate.asked_hz, trained_hz)), None)
        if options.ablate_memory and trained is None:
            trained = self._plan(trained_hz)
            trained = by_hz.get(trained.hz, trained)
        return rates, trained

    def _plan(self, asked_hz: float) -> PlannedRate:
        sequences, trained = self.sequences(asked_hz), self.checkpoint.windows
        if not any(len(scored_labels(sequence.labels, self.checkpoint.spec)) for sequence in sequences):
            raise ValueError(
                f"the {self.config.evaluation.split} split has no box that is scored "
                f"({scoring_rules(self.checkpoint.spec)}); choose another split, or prepare it with its labels"
            )
        # labels decide the steps from the first one on
        parts = [sequence.windows.dt_us[int(sequence.labels.window_index[0]) + 1 :] for sequence in sequences]
        if not any(map(len, parts)):
            parts = [sequence.windows.dt_us for sequence in sequences]
        step_us = float(np.median(np.concatenate(parts)))
        self.checkpoint.detector.prepare(self.config.evaluation.step_scale or step_us / trained.stride_us)
        hz = true_rate(asked_hz, step_us)
        # the rate of training is run as in training, under its true name: prepared recordings have no other
        if not is_reached(asked_hz, hz) and not is_same_rate(asked_hz, trained.hz):
            intervals_us = np.concatenate([np.diff(np.unique(sequence.labels.t_us)) for sequence in sequences])
            nearest = " or ".join(f"{near:g}" for near in nearest_rates(intervals_us, asked_hz))
            raise ValueError(
                f"evaluation.frequencies_hz: {asked_hz:g} Hz cannot be reached, because a window ends at every label "
                f"and labels are {np.median(intervals_us) / 1000:g} ms apart, which makes it {hz:g} Hz; "
                + (f"ask for {nearest} Hz, the nearest, or " if nearest else "")
                + "set evaluation.grid=free"
            )
        return PlannedRate(asked_hz, hz, step_us)

    def sequences(self, hz: float, label_hz: float | None = None) -> list[FrameSequence]:
        """Return the labelled recordings in windows at a rate; with `label_hz` their labels are interpolated."""
        settings, options = self.checkpoint.windows, self.config.evaluation
        if options.window == "slide" or not is_same_rate(hz, settings.hz):
            settings = settings.at_rate(settings.hz if is_same_rate(hz, settings.hz) else hz, options.window)
        found = self.data.eval_sequences(options.split, settings, self.source, options.grid, label_hz)
        return [sequence for sequence in found if len(sequence.labels)]

    def scored(
        self, hz: float, latency_ms: float | None = None, is_reset: bool = False
    ) -> tuple[list[ScoredRecording], list[FrameSequence]]:
        """Run the split at a rate; return labels and detections of each recording, and its frames.

        With a latency, a label gets the newest output whose computation had finished, otherwise that of its window.
        """
        sequences = self.sequences(hz, self.config.evaluation.label_hz)
        if latency_ms is not None:
            sequences = self.streamed(sequences, latency_ms)
        wanted = [sequence.labels.window_index for sequence in sequences]
        outputs = self._outputs(sequences, wanted, f"{hz:g} Hz" + (", state reset" if is_reset else ""), is_reset)
        return [_scored(*each) for each in zip(sequences, outputs, strict=True)], sequences

    def streamed(self, sequences: list[FrameSequence], latency_ms: float) -> list[FrameSequence]:
        """Return the steps that a detector takes, whose labels have the newest step that had finished.

        Raise ValueError if it would skip windows of prepared recordings.
        """
        found = []
        for sequence in sequences:
            when_late = self.config.evaluation.when_late
            steps, finished_us = taken_steps(sequence.windows.ends_us, 1000 * latency_ms, when_late)
            found.append(_with_steps(sequence.taking(steps), newest(sequence.labels.t_us, finished_us)))
        return found

    def scored_with_shifts(self, hz: float, shifts_ms: Sequence[float]) -> dict[float, list[ScoredRecording]]:
        """Run the split at a rate; return the recordings by shift.

        A label gets the newest output at its time plus the shift in milliseconds.
        """
        sequences = self.sequences(hz, self.config.evaluation.label_hz)
        shifted = [
            {
                shift: _with_steps(each, newest(each.labels.t_us + round(1000 * shift), each.windows.ends_us))
                for shift in shifts_ms
            }
            for each in sequences
        ]
        wanted = [np.concatenate([each.labels.window_index for each in by_shift.values()]) for by_shift in shifted]
        outputs = self._outputs(sequences, wanted, f"time shifts at {hz:g} Hz")
        return {
            shift: [_scored(by_shift[shift], found) for by_shift, found in zip(shifted, outputs, strict=True)]
            for shift in shifts_ms
        }

    def _outputs(
        self, sequences: list[FrameSequence], wanted: list[np.ndarray], progress: str, is_reset: bool = False
    ) -> list[dict[int, Detections]]:
        """Run the detector over sequences; return by step the outputs of the wanted steps; the step -1 has none."""
        asked = [requests(steps[steps >= 0], each.windows) for steps, each in zip(wanted, sequences, strict=True)]
        found: list[dict[int, Detections]] = [{} for _ in sequences]
        run = [number for number, labels in enumerate(asked) if len(labels)]
        if run:
            results = stream(
                self.checkpoint.detector,
                self.data.eval_loader([replace(sequences[number], labels=asked[number]) for number in run]),
                trained_stride_us=self.checkpoint.windows.stride_us,
                memory_chunk=self.checkpoint.model_config.memory_chunk,
                reset_every_step=is_reset,
                step_scale=self.config.evaluation.step_scale,
                config=self.config.postprocess,
                progress=progress,
            )
            for number, result in zip(run, results, strict=True):
                found[number] = dict(zip(asked[number].window_index.tolist(), result.detections, strict=True))
        for sequence in sequences:
            sequence.close()
        return found


def _with_steps(sequence: FrameSequence, steps: np.ndarray) -> FrameSequence:
    """Return the sequence with its labels tied to other steps."""
    return replace(sequence, labels=replace(sequence.labels, window_index=steps))


def _scored(sequence: FrameSequence, outputs: dict[int, Detections]) -> ScoredRecording:
    return ScoredRecording(sequence.name, sequence.labels, paired(sequence.labels, outputs))
