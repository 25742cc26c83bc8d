"""Run a detector over the recordings of a split, in this process or in several.

Recordings run in batches. The result of a batch does not depend on the process that runs it, provided that all
processes have the same number of threads (OMP_NUM_THREADS), because a batch always contains the same recordings.
"""

import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rvtssm.datasets import DataConfig
from rvtssm.datasets.datamodule import SequenceDataModule, eval_loader
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.export.exported import is_exported, read_exported
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import read_checkpoint, weights_digest
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, detector_for_frame
from rvtssm.models.detector import Detector, set_precision, usual_device
from rvtssm.models.streams import Streams
from rvtssm.models.weight_files import local_weights
from rvtssm.records import Detections, SequenceBatch
from rvtssm.system.extras import import_plugins
from rvtssm.system.machine import num_usable_cores
from rvtssm.system.workers import Processes, finished, progress_bar


@dataclass(frozen=True)
class WeightsFile:
    """Weights by name, which other processes can read."""

    path: str
    precision: str
    plugins: tuple[str, ...] = ()  # files that add parts, imported first

    def read_with_digest(self) -> tuple[LoadedCheckpoint, str]:
        """Return the weights and their SHA-256, that of the file for an exported one, which holds more than weights."""
        import_plugins(self.plugins)
        if is_exported(self.path):
            return read_exported(self.path, self.precision), hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        checkpoint = read_checkpoint(local_weights(self.path), usual_device())
        digest = weights_digest(checkpoint.detector.state_dict())
        set_precision(checkpoint.detector, self.precision)  # after the digest, because bf16 rounds the weights
        return checkpoint, digest


@functools.lru_cache(maxsize=1)
def read_once(weights: WeightsFile, frame_hw: tuple[int, int] | None = None) -> LoadedCheckpoint:
    """Return the weights in a worker process, from memory if it has read them already.

    Args:
        weights: The file of the weights.
        frame_hw: Height and width of the frames; None: as in the file.
    """
    checkpoint, _ = weights.read_with_digest()
    if frame_hw is None:
        return checkpoint
    return replace(checkpoint, detector=detector_for_frame(checkpoint, *frame_hw))


@dataclass(frozen=True)
class DetectorRun:
    """A detector on a split, and how it runs over recordings."""

    weights: WeightsFile
    checkpoint: LoadedCheckpoint  # the weights, for the classes and frames of the data
    data: SequenceDataModule
    options: EvaluationConfig
    postprocess: PostprocessConfig
    classes: tuple[int, ...] | None = None  # class of the data for each class of the weights, -1: none; None: the same
    sha256: str = ""  # of the weights

    @property
    def source(self) -> str:
        """Where the frames come from: raw or prepared."""
        named = self.options.source or self.data.config.source
        return named or ("raw" if self.data.config.raw_dir else "prepared")

    def outputs(
        self, sequences: Sequence[FrameSequence], progress: str, is_reset: bool = False
    ) -> list[list[Detections]]:
        """Run recordings from their start, and return the detections of each at its wanted steps, ordered by time.

        Args:
            sequences: The recordings.
            progress: Text beside a progress bar.
            is_reset: Reset the state at every step.
        """
        # The batches are the same whoever runs them.
        batches = self._batches(sequences, is_reset)
        number = num_processes(self.options.workers)
        with progress_bar(progress, sum(batch.num_chunks for batch in batches.values())) as advance:
            if number == 1:
                by_batch = {numbers: batch.run(self.checkpoint, advance) for numbers, batch in batches.items()}
            else:
                by_batch = self._run_elsewhere(batches, min(number, len(batches)), advance)
        # Back in the order of the recordings, with the classes of the data.
        outputs: list[list[Detections]] = [[] for _ in sequences]
        for numbers, of_batch in by_batch.items():
            for place, output in zip(numbers, of_batch, strict=True):
                outputs[place] = [*map(self._in_data, output)]
        for sequence in sequences:
            sequence.close()
        return outputs

    def _batches(self, sequences: Sequence[FrameSequence], is_reset: bool) -> dict[tuple[int, ...], "_Batch"]:
        """Return the batches by the numbers of their recordings, the longest first."""
        # Recordings of similar length run together.
        asked = [number for number, sequence in enumerate(sequences) if len(sequence.wanted_steps)]
        ordered = sorted(asked, key=lambda number: -len(sequences[number].windows))  # similar lengths in a batch
        memory_chunk = self.checkpoint.model_config.memory_chunk
        if is_reset:
            memory_chunk = 1
        elif self.options.memory == "carried":
            memory_chunk = None
        how = self.data.data, self.postprocess, memory_chunk, self.options.step_scale
        size = self.data.data.eval_batch_size
        batches = {}
        for first in range(0, len(ordered), size):
            numbers = tuple(sorted(ordered[first : first + size]))
            own = [sequences[number] for number in numbers]
            batches[numbers] = _Batch(own, *how)
        return batches

    def _run_elsewhere(
        self, batches: dict[tuple[int, ...], "_Batch"], number: int, advance: Callable[[int], object]
    ) -> dict[tuple[int, ...], list[list[Detections]]]:
        spec = self.data.spec
        frame_hw = spec.frame_height, spec.frame_width
        tasks = ((numbers, _run_batch, (self.weights, frame_hw, batch)) for numbers, batch in batches.items())
        outputs = {}
        with closing(detector_processes(number)) as processes:
            for done in finished(processes, lambda: next(tasks, None), lambda numbers: batches[numbers].names):
                if done.error is not None:
                    raise done.error
                outputs[done.key] = done.result
                advance(batches[done.key].num_chunks)
        return outputs

    def _in_data(self, frame: Detections) -> Detections:
        """Return the detections whose class the data have, with its index."""
        if self.classes is None:
            return frame
        mapped = replace(frame, class_id=np.array(self.classes)[frame.class_id])
        return mapped[mapped.class_id >= 0]


@dataclass(frozen=True)
class _Batch:
    """Recordings that are run together. A batch can be sent to other processes."""

    sequences: list[FrameSequence]  # `asked` says which steps are wanted
    data: DataConfig
    postprocess: PostprocessConfig
    memory_chunk: int | None  # steps after which the state is reset; None: never
    step_scale: float | None

    @property
    def names(self) -> str:
        return ", ".join(sequence.name for sequence in self.sequences)

    @property
    def num_chunks(self) -> int:
        """Length of the longest recording, in chunks."""
        length = self.data.eval_chunk_length
        return max(-(-len(sequence.windows) // length) for sequence in self.sequences)

    def run(self, checkpoint: LoadedCheckpoint, advance: Callable[[int], object]) -> list[list[Detections]]:
        """Return the detections of each recording; `advance` is called with the number of chunks that are done."""
        results = stream(
            checkpoint.detector,
            eval_loader(self.sequences, self.data),
            trained_stride_us=checkpoint.windows.stride_us,
            memory_chunk=self.memory_chunk,
            step_scale=self.step_scale,
            config=self.postprocess,
            advance=advance,
        )
        return [results[number] for number in range(len(self.sequences))]


def stream(
    detector: Detector,
    loader: Iterable[SequenceBatch],
    *,
    trained_stride_us: float,
    memory_chunk: int | None = None,
    step_scale: float | None = None,
    config: PostprocessConfig | None = None,
    advance: Callable[[int], object] = lambda steps: None,
) -> dict[int, list[Detections]]:
    """Return the detections at every labelled frame of an evaluation loader.

    Args:
        detector: The detector.
        loader: Batches that read every recording from its start.
        trained_stride_us: The stride of training. The step scale is `dt_us / trained_stride_us`.
        memory_chunk: Reset the state after this many steps; None never does. With 1, the loss in accuracy shows how
            much the memory contributes.
        step_scale: Use this step scale instead.
        config: Post-processing.
        advance: Called with 1 after every batch.

    Returns:
        Detections ordered by time, by the number of their recording in its split. Recordings without a labelled frame
        are left out.
    """
    by_recording: dict[int, list[Detections]] = defaultdict(list)
    streams = Streams(detector, trained_stride_us, memory_chunk, step_scale)
    was_training = detector.training
    detector.eval()
    try:
        for batch in loader:
            if not bool(batch.is_pad.all()):
                for recording, frame in streams.detect_batch(batch, config):
                    by_recording[recording].append(frame)
            advance(1)
    finally:
        detector.train(was_training)
    return {number: sorted(frames, key=lambda frame: frame.t_us) for number, frames in sorted(by_recording.items())}


def _run_batch(weights: WeightsFile, frame_hw: tuple[int, int], batch: _Batch) -> list[list[Detections]]:
    """Run a batch in a process that may not have read the weights yet."""
    return batch.run(read_once(weights, frame_hw), lambda steps: None)


def num_processes(asked: int | None) -> int:
    """Return how many processes run a detector; by default one per GPU, or without a GPU one per core."""
    return asked or torch.cuda.device_count() or num_usable_cores()


def detector_processes(number: int) -> Processes:
    """Return processes on this machine that share its cores, each with its own GPU if there are GPUs."""
    # The cores are shared, and so are the GPUs.
    num_threads = torch.get_num_threads()
    if not os.environ.get("OMP_NUM_THREADS"):
        num_threads = max(1, num_usable_cores() // number)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if gpus == [""]:
        gpus = [*map(str, range(torch.cuda.device_count()))]
    shared = {"OMP_NUM_THREADS": str(num_threads)}
    if not torch.cuda.device_count():
        return Processes(number, [shared])
    return Processes(number, [{**shared, "CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} for k in range(number)])
