"""Run the recordings of a split through a detector, and find the outputs that are scored at each label."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.batch_workers import BatchWorkers, RecordingBatch, this_machine
from rvtssm.evaluation.coco import ScoredRecording
from rvtssm.evaluation.kept_outputs import outputs_digest, read_outputs
from rvtssm.evaluation.latency import newest, taken_steps
from rvtssm.evaluation.shared_weights import SharedWeights
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import Detections, Labels
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.user_error import UserError


@dataclass(frozen=True)
class Pass:
    """A pass of the detector over a split."""

    rate: PlannedRate
    latency_ms: float | None = None  # a label gets the newest finished output; None: the output of its window
    is_reset: bool = False  # the state is reset at every step


@dataclass(frozen=True)
class SplitRuns(SplitPlan):
    """Runs a detector over a split."""

    weights: SharedWeights
    postprocess: PostprocessConfig
    workers: BatchWorkers
    kept: Path  # folder that keeps outputs until the evaluation is complete
    classes: tuple[int, ...] | None = None  # class of the data for each class of the weights, -1: none; None: the same

    def kept_latency_ms(self, sequence: FrameSequence, measure: Callable[[], float]) -> float:
        """Return the latency that was kept for a recording on this machine, or measure and keep it.

        Args:
            sequence: The recording.
            measure: Returns the latency in milliseconds.
        """
        path = self.kept / f"{self._digest([sequence], machine=this_machine())}.json"
        with contextlib.suppress(OSError, ValueError, TypeError):  # there is no file, or it is damaged
            return float(json.loads(path.read_text()))
        latency_ms = measure()
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(latency_ms))
        return latency_ms

    def run(self, passes: Sequence[Pass]) -> None:
        """Run all passes whose outputs are not kept yet, in one go, so that no process waits at the end of a pass."""
        batches: dict[Path, RecordingBatch] = {}
        for each in passes:
            batches |= {batch.path: batch for batch in self._batches(self._steps_of(each), each.is_reset).values()}
        self._run_missing(list(batches.values()))

    def scored(self, asked: Pass) -> tuple[list[ScoredRecording], list[FrameSequence]]:
        """Return labels and detections of each recording and its frames. Run first whatever `run` has not run."""
        sequences = self._steps_of(asked)
        outputs = self._outputs(sequences, asked.is_reset)
        return [_scored(each, each.labels, found) for each, found in zip(sequences, outputs, strict=True)], sequences

    def _steps_of(self, asked: Pass) -> list[FrameSequence]:
        """Return the recordings of a pass with the steps that are scored."""
        sequences = self.sequences(asked.rate, self.options.label_hz)
        if asked.latency_ms is not None:
            sequences = self.streamed(sequences, asked.latency_ms)
        return [_asking(sequence, sequence.labels) for sequence in sequences]

    def streamed(self, sequences: list[FrameSequence], latency_ms: float) -> list[FrameSequence]:
        """Return the recordings with the steps that a detector of this latency takes.

        Labels refer to the newest finished step.

        Args:
            sequences: The recordings.
            latency_ms: Duration of a step.

        Raises:
            UserError: The detector would skip windows of prepared recordings.
        """
        found = []
        for sequence in sequences:
            when_late = self.options.when_late
            steps, finished_us = taken_steps(sequence.windows.ends_us, 1000 * latency_ms, when_late)
            labels = replace(sequence.labels, window_index=newest(sequence.labels.t_us, finished_us))
            found.append(replace(sequence.taking(steps), labels=labels))
        return found

    def scored_with_shifts(self, rate: PlannedRate, shifts_ms: Sequence[float]) -> dict[float, list[ScoredRecording]]:
        """Run the split at a rate, and score each label with the newest output at its time plus a shift.

        Args:
            rate: The rate.
            shifts_ms: The shifts.

        Returns:
            The recordings by shift.
        """
        sequences = self.sequences(rate, self.options.label_hz)
        shifted = []
        for each in sequences:
            steps = {ms: newest(each.labels.t_us + round(1000 * ms), each.windows.ends_us) for ms in shifts_ms}
            shifted.append({ms: replace(each.labels, window_index=found) for ms, found in steps.items()})
        sequences = [_asking(each, *by_shift.values()) for each, by_shift in zip(sequences, shifted, strict=True)]
        outputs = self._outputs(sequences)
        return {
            shift: [
                _scored(sequence, labels[shift], found)
                for sequence, labels, found in zip(sequences, shifted, outputs, strict=True)
            ]
            for shift in shifts_ms
        }

    def _outputs(self, sequences: list[FrameSequence], is_reset: bool = False) -> list[list[Detections]]:
        """Run the detector over sequences, and return the detections of each at its wanted steps."""
        found: list[list[Detections]] = [[] for _ in sequences]
        batches = self._batches(sequences, is_reset)
        self._run_missing(list(batches.values()))
        for numbers, batch in batches.items():
            outputs = read_outputs(batch.path, len(numbers))
            if outputs is None:
                raise UserError(
                    f"{batch.path} was removed or damaged during the evaluation, or the node that wrote it does not "
                    "see this folder; run again, with a folder for `out` that all nodes share"
                )
            for number, output in zip(numbers, outputs, strict=True):
                found[number] = output if self.classes is None else [_in_data(frame, self.classes) for frame in output]
        for sequence in sequences:
            sequence.close()
        return found

    def _run_missing(self, batches: list[RecordingBatch]) -> None:
        """Run the batches without kept outputs, the longest first."""
        missing = [batch for batch in batches if read_outputs(batch.path, len(batch.sequences)) is None]
        if missing:
            self.workers.run(sorted(missing, key=lambda batch: -batch.num_chunks), "evaluating")

    def _batches(self, sequences: list[FrameSequence], is_reset: bool) -> dict[tuple[int, ...], RecordingBatch]:
        """Return the batches that run the wanted steps, by the numbers of their recordings."""
        numbers = [n for n, each in enumerate(sequences) if len(each.wanted_steps)]
        ordered = sorted(numbers, key=lambda n: -len(sequences[n].windows))  # so that lengths in a batch are similar
        size = self.data.data.eval_batch_size
        dealt = [tuple(sorted(ordered[first : first + size])) for first in range(0, len(ordered), size)]
        return {numbers: self._batch([sequences[n] for n in numbers], is_reset) for numbers in dealt}

    def _batch(self, sequences: list[FrameSequence], is_reset: bool) -> RecordingBatch:
        # On a CPU, the number of threads changes the last bits.
        threads = self.workers.num_threads if self.checkpoint.detector.device.type == "cpu" else None
        carries = self.options.memory == "carried"
        memory_chunk = 1 if is_reset else None if carries else self.checkpoint.model_config.memory_chunk
        path = self.kept / f"{self._digest(sequences, memory_chunk=memory_chunk, threads=threads)}.npz"
        how = self.data.config, self.data.data, self.postprocess, memory_chunk, self.options.step_scale
        return RecordingBatch(self.weights, sequences, path, *how)

    def _digest(self, sequences: list[FrameSequence], **conditions: Any) -> str:
        """Return a digest of everything that the outputs of a batch depend on. Conditions are plain values."""
        settings = {
            **conditions,
            "weights": self.weights.sha256,
            "description": self.checkpoint.to_dict() | {"raw_dir": None, "prepared_dir": None},
            "precision": self.weights.precision,
            "device": self.checkpoint.detector.device.type,
            "step_scale": self.options.step_scale,
            "postprocess": asdict(self.postprocess),
            "eval_chunk_length": self.data.data.eval_chunk_length,
            "spec": asdict(self.data.spec),
        }
        return outputs_digest(settings, self.weights.plugins, sequences)


def _asking(sequence: FrameSequence, *labels: Labels) -> FrameSequence:
    """Return the sequence with the steps of these labels as its wanted steps. Step -1 has no output."""
    steps = np.concatenate([each.window_index for each in labels])
    return replace(sequence, asked=np.unique(steps[steps >= 0]))


def _in_data(frame: Detections, classes: tuple[int, ...]) -> Detections:
    """Return the detections whose class the data have, with its index."""
    found = replace(frame, class_id=np.array(classes)[frame.class_id])
    return found[found.class_id >= 0]


def _scored(sequence: FrameSequence, labels: Labels, outputs: Sequence[Detections]) -> ScoredRecording:
    return ScoredRecording(sequence.name, labels, at_labels(labels, sequence.wanted_steps, outputs))


def at_labels(labels: Labels, steps: np.ndarray, outputs: Sequence[Detections]) -> list[Detections]:
    """Return the detections to score at each label time: the output of the step that its labels are assigned to.

    Args:
        labels: The labels, assigned to steps. With step -1 nothing was detected, since the label precedes any output.
        steps: (M,), the steps with outputs.
        outputs: One per step.
    """
    by_step = dict(zip(steps.tolist(), outputs, strict=True))
    empty = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    times, first = np.unique(labels.t_us, return_index=True)
    return [
        replace(by_step[step] if step >= 0 else empty, t_us=time)
        for time, step in zip(times.tolist(), labels.window_index[first].tolist(), strict=True)
    ]
