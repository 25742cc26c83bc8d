"""Runs a detector over batches of recordings: in this process, in several, or in those that a launcher has started.

What a batch gives does not depend on who runs it, because its recordings are always the same ones.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment

from rvtssm.config import Config
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.inference.exported import read_weights_file
from rvtssm.inference.stream import stream
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.plugins import import_plugins
from rvtssm.progress import progress_bar
from rvtssm.run.kept_outputs import Outputs, write_outputs
from rvtssm.training.launch import launched
from rvtssm.workers import Processes, Task, WorkerDied, finished, num_usable_cores

_CORES_PER_PROCESS = 4  # if the number of processes is not given
_TIMEOUT = timedelta(days=30)  # processes wait while the first one computes intervals, or while one has a longer share


@dataclass(frozen=True)
class RecordingBatch:
    """Recordings that are run together. It can be sent to other processes."""

    config: Config
    sequences: list[FrameSequence]  # their labels stand at the steps whose outputs are wanted
    is_reset: bool  # the state, at every step
    path: Path  # where the outputs are written

    @property
    def num_chunks(self) -> int:
        """The longest of the recordings in chunks."""
        length = self.config.data.eval_chunk_length
        return max(-(-len(sequence.windows) // length) for sequence in self.sequences)


class BatchWorkers(Protocol):
    """The interface of all who run batches."""

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        """Run batches and write their outputs. `progress` names a bar with the time left."""


class ThisProcess:
    """Runs batches one after the other with weights that were read already."""

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        self._checkpoint = checkpoint

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        with progress_bar(progress, sum(batch.num_chunks for batch in batches)) as advance:
            for batch in batches:
                run_batch(batch, self._checkpoint, advance)


class OtherProcesses:
    """Runs batches in processes on this machine, each on a GPU of its own where there are GPUs."""

    def __init__(self, num_processes: int) -> None:
        num_gpus = torch.cuda.device_count()
        # the number of threads changes the last bits of outputs, so a given one is kept
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, num_usable_cores() // num_processes))
        gpus = [{"CUDA_VISIBLE_DEVICES": _visible_gpu(k % num_gpus)} if num_gpus else {} for k in range(num_processes)]
        self._workers = Processes(num_processes, [{"OMP_NUM_THREADS": threads, **gpu} for gpu in gpus])

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        tasks: Iterator[Task] = ((number, _run_elsewhere, [batch]) for number, batch in enumerate(batches))
        with progress_bar(progress, sum(batch.num_chunks for batch in batches)) as advance:
            for done in finished(self._workers, lambda: next(tasks, None)):
                if isinstance(done.error, WorkerDied):
                    raise ValueError(f"evaluation.processes={self._workers.num_workers}: {done.error}") from done.error
                if done.error is not None:
                    raise done.error
                advance(batches[done.key].num_chunks)

    def close(self) -> None:
        self._workers.close()


class Ranks:
    """Runs batches in all processes that torchrun or srun has started, each of which does its share.

    The first process decides what is run; all others call `serve`. All of them must see the same folders.
    """

    def __init__(self, found: ClusterEnvironment) -> None:
        os.environ.setdefault("MASTER_ADDR", found.main_address)
        os.environ.setdefault("MASTER_PORT", str(found.main_port))
        self.rank, self.num_ranks = found.global_rank(), found.world_size()
        if torch.cuda.is_available():
            torch.cuda.set_device(found.local_rank() % torch.cuda.device_count())
        torch.distributed.init_process_group("gloo", rank=self.rank, world_size=self.num_ranks, timeout=_TIMEOUT)

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        self._told(list(batches))
        self._do(batches, progress)

    def serve(self) -> None:
        """Run the shares of this process until the first one is done."""
        while (batches := self._told(None)) is not None:
            self._do(batches, None)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.rank == 0 and (kind is None or issubclass(kind, Exception)):  # after Ctrl-C all others end as well
            self._told(None)
        torch.distributed.destroy_process_group()

    def _told(self, batches: list[RecordingBatch] | None) -> list[RecordingBatch] | None:
        """Return what the first process says."""
        told: list[Any] = [batches]
        torch.distributed.broadcast_object_list(told, src=0)
        return told[0]

    def _do(self, batches: Sequence[RecordingBatch], progress: str | None) -> None:
        own, error = batches[self.rank :: self.num_ranks], None
        try:
            with progress_bar(progress, sum(batch.num_chunks for batch in own)) as advance:
                for batch in own:
                    run_batch(batch, _weights_here(batch.config), advance)
        except Exception as failed:  # of which all have to learn
            error = f"process {self.rank}: {failed}"
        errors: list[str | None] = [None] * self.num_ranks
        torch.distributed.all_gather_object(errors, error)
        if self.rank == 0 and any(errors):
            raise ValueError(next(filter(None, errors)))


def join_ranks(config: Config) -> Ranks | None:
    """Join the processes that a launcher has started; None if there is no launcher, or one process only."""
    found = launched()
    # a script of sbatch has the variables of a job, but is not started by srun
    is_alone = isinstance(found, SLURMEnvironment) and "SLURM_STEP_ID" not in os.environ
    if found is None or is_alone or found.world_size() == 1:
        return None
    if config.evaluation.processes != 1:
        raise ValueError(
            f"evaluation.processes={config.evaluation.processes}, and a launcher has started {found.world_size()} "
            "processes; leave evaluation.processes out"
        )
    return Ranks(found)


@contextmanager
def open_workers(config: Config, checkpoint: LoadedCheckpoint, ranks: Ranks | None) -> Iterator[BatchWorkers]:
    """Yield those who run the batches of an evaluation."""
    processes = config.evaluation.processes
    if processes is None:
        processes = torch.cuda.device_count() or max(1, num_usable_cores() // _CORES_PER_PROCESS)
    if ranks is not None:
        yield ranks
    elif processes == 1:
        yield ThisProcess(checkpoint)
    else:
        with closing(OtherProcesses(processes)) as workers:
            yield workers


def run_batch(batch: RecordingBatch, checkpoint: LoadedCheckpoint, advance: Callable[[int], object]) -> None:
    """Run a batch and write its outputs; `advance` is called with the number of chunks that are done."""
    config = batch.config
    loader = SequenceDataModule(config.dataset, data=config.data).eval_loader(batch.sequences)
    results = stream(
        checkpoint.detector,
        loader,
        trained_stride_us=checkpoint.windows.stride_us,
        memory_chunk=checkpoint.model_config.memory_chunk,
        reset_every_step=batch.is_reset,
        step_scale=config.evaluation.step_scale,
        config=config.postprocess,
        advance=advance,
    )
    steps = [sequence.labels.window_index.tolist() for sequence in batch.sequences]
    found: list[Outputs] = [{} for _ in batch.sequences]
    for result in results:
        found[result.recording] = dict(zip(steps[result.recording], result.detections, strict=True))
    write_outputs(batch.path, found)
    for sequence in batch.sequences:
        sequence.close()


def _run_elsewhere(batch: RecordingBatch) -> None:
    """Run a batch in a process that has no weights yet."""
    run_batch(batch, _weights_here(batch.config), lambda steps: None)


def _weights_here(config: Config) -> LoadedCheckpoint:
    import_plugins(config.plugins)
    return _read_once(str(config.checkpoint), config.precision, config.trust)


@functools.lru_cache(maxsize=1)
def _read_once(path: str, precision: str, trust: bool) -> LoadedCheckpoint:
    return read_weights_file(path, precision, trust)


def _visible_gpu(number: int) -> str:
    """Return the name of a GPU among those that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[number] if visible else str(number)
