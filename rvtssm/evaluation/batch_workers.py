"""Run a detector over batches of recordings: in this process, in several, or in processes that a launcher has started.

The result of a batch does not depend on the process that runs it, provided that all processes have the same number of
threads (OMP_NUM_THREADS), because a batch always contains the same recordings.
"""

import os
import platform
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.loading_config import DataConfig
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.detection.stream import stream
from rvtssm.evaluation.kept_outputs import write_outputs
from rvtssm.evaluation.launchers import launched
from rvtssm.evaluation.shared_weights import SharedWeights
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.system.progress import progress_bar
from rvtssm.system.provenance import processor
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import Processes, Task, finished, num_usable_cores

_TIMEOUT = timedelta(days=30)  # processes wait while the first computes intervals, or while another has a longer share
_AGAIN = "the same command continues the work"


@dataclass(frozen=True)
class RecordingBatch:
    """Recordings that are run together. A batch can be sent to other processes."""

    weights: SharedWeights
    sequences: list[FrameSequence]  # `asked` says which steps are wanted
    path: Path  # where the outputs are written
    dataset: DatasetConfig
    data: DataConfig
    postprocess: PostprocessConfig
    memory_chunk: int | None  # steps after which the state is reset; None: never
    step_scale: float | None  # None: stride / training stride

    @property
    def num_chunks(self) -> int:
        """Length of the longest recording, in chunks."""
        length = self.data.eval_chunk_length
        return max(-(-len(sequence.windows) // length) for sequence in self.sequences)


class BatchWorkers(Protocol):
    """The interface of everything that runs batches."""

    num_threads: int  # of each process

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        """Run batches and write their outputs.

        Args:
            batches: The batches.
            progress: Text beside a progress bar with the time left.
        """


class ThisProcess:
    """Runs batches one after the other in this process.

    Args:
        checkpoint: The weights.
    """

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        self._checkpoint = checkpoint
        self.num_threads = torch.get_num_threads()

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        with progress_bar(progress, sum(batch.num_chunks for batch in batches)) as advance:
            for batch in batches:
                run_batch(batch, self._checkpoint, advance)


class OtherProcesses:
    """Runs batches in processes on this machine, each with its own GPU if there are GPUs.

    Args:
        num_processes: Number of processes.
    """

    def __init__(self, num_processes: int) -> None:
        self.num_threads = _threads_of(num_processes)
        self._workers = detector_processes(num_processes)

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        tasks: Iterator[Task] = ((number, _run_elsewhere, [batch]) for number, batch in enumerate(batches))
        with progress_bar(progress, sum(batch.num_chunks for batch in batches)) as advance:
            for done in finished(self._workers, lambda: next(tasks, None), lambda number: _names(batches[number])):
                if done.error is not None:
                    raise done.error
                advance(batches[done.key].num_chunks)

    def close(self) -> None:
        self._workers.close()


class _ProcessLost(UserError):
    """Another process of the launcher has ended."""


class Ranks:
    """Runs batches in all processes that torchrun or srun has started. Each runs its share.

    The first process decides what is run; all others call `serve`. All must see the same folders.

    Args:
        found: The environment of the launcher.

    Raises:
        UserError: Not all processes connected.
    """

    checkpoint: LoadedCheckpoint | None = None  # the weights, if this process has read them already

    def __init__(self, found: ClusterEnvironment) -> None:
        os.environ.setdefault("MASTER_ADDR", found.main_address)
        os.environ.setdefault("MASTER_PORT", str(found.main_port))
        self.rank, self.num_ranks = found.global_rank(), found.world_size()
        if torch.cuda.is_available():
            torch.cuda.set_device(found.local_rank() % torch.cuda.device_count())
        self.num_threads = torch.get_num_threads()
        try:
            torch.distributed.init_process_group("gloo", rank=self.rank, world_size=self.num_ranks)
            self._group: Any = torch.distributed.new_group(timeout=_TIMEOUT)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"not all of the {self.num_ranks} processes of the launcher connected ({reason}); start them again"
            ) from error

    def run(self, batches: Sequence[RecordingBatch], progress: str) -> None:
        self._broadcast(list(batches))
        self._run_share(batches, progress)

    def serve(self) -> None:
        """Run this process's share of everything, until the first process is done."""
        while (batches := self._broadcast(None)) is not None:
            self._run_share(batches, None)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_complete = kind is None or (issubclass(kind, Exception) and not issubclass(kind, _ProcessLost))
        if self.rank == 0 and is_complete:  # after Ctrl-C, all other processes stop by themselves
            self._broadcast(None)
        torch.distributed.destroy_process_group()

    def _broadcast(self, batches: list[RecordingBatch] | None) -> list[RecordingBatch] | None:
        """Return the batches of the first process."""
        told: list[Any] = [batches]
        with _lost_processes():
            torch.distributed.broadcast_object_list(told, src=0, group=self._group)
        return told[0]

    def _run_share(self, batches: Sequence[RecordingBatch], progress: str | None) -> None:
        own = batches[self.rank :: self.num_ranks]
        error: Exception | None = None
        try:
            with progress_bar(progress, sum(batch.num_chunks for batch in own)) as advance:
                for batch in own:
                    run_batch(batch, self.checkpoint or batch.weights.read(), advance)
        except (UserError, OSError) as failed:
            error = UserError(f"process {self.rank}: {failed}")
        except Exception:  # all processes have to learn about it
            error = RuntimeError(f"process {self.rank}: {traceback.format_exc()}")
        errors: list[Exception | None] = [None] * self.num_ranks
        with _lost_processes():
            torch.distributed.all_gather_object(errors, error, group=self._group)
        failures = [error for error in errors if error is not None]
        if self.rank == 0 and failures:
            raise failures[0]


@contextmanager
def _lost_processes() -> Iterator[None]:
    """Raise `_ProcessLost` in place of the error of a connection to another process."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise _ProcessLost(f"another process of the launcher has ended ({reason}); {_AGAIN}") from error


def join_ranks(processes: int | None) -> Ranks | None:
    """Join the processes that a launcher has started.

    Args:
        processes: The setting `evaluation.workers`, which must be 1 with a launcher.

    Returns:
        None if there is no launcher, or only one process.

    Raises:
        UserError: `processes` is not 1.
    """
    found = launched()
    # A script of sbatch has the variables of a job although srun did not start it.
    is_alone = isinstance(found, SLURMEnvironment) and "SLURM_STEP_ID" not in os.environ
    if found is None or is_alone or found.world_size() == 1:
        return None
    if processes != 1:
        raise UserError(f"a launcher has started {found.world_size()} processes; leave evaluation.workers out")
    return Ranks(found)


@contextmanager
def open_workers(asked: int | None, checkpoint: LoadedCheckpoint, ranks: Ranks | None) -> Iterator[BatchWorkers]:
    """Yield the workers that run the batches of an evaluation.

    Args:
        asked: Number of processes; None for the default of `num_processes`.
        checkpoint: The weights.
        ranks: The processes of a launcher, if there is one.
    """
    processes = num_processes(asked)
    if ranks is not None:
        ranks.checkpoint = checkpoint
        yield ranks
    elif processes == 1:
        yield ThisProcess(checkpoint)
    else:
        with closing(OtherProcesses(processes)) as workers:
            yield workers


def this_machine() -> list[str | int | None]:
    """Return what decides how long a step takes here: the machine, its processor and GPU by name, and the threads."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return [platform.node(), processor(), gpu, torch.get_num_threads()]


def num_processes(asked: int | None) -> int:
    """Return how many processes run a detector; by default one per GPU, or without a GPU one per core."""
    return asked or torch.cuda.device_count() or num_usable_cores()


def detector_processes(number: int) -> Processes:
    """Return processes on this machine that share its cores, each with its own GPU if there are GPUs."""
    num_gpus, num_threads = torch.cuda.device_count(), str(_threads_of(number))
    gpus = [{"CUDA_VISIBLE_DEVICES": _visible_gpu(k % num_gpus)} if num_gpus else {} for k in range(number)]
    return Processes(number, [{"OMP_NUM_THREADS": num_threads, **gpu} for gpu in gpus])


def _threads_of(number: int) -> int:
    """Return the number of threads of each process."""
    if os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()
    return max(1, num_usable_cores() // number)


def run_batch(batch: RecordingBatch, checkpoint: LoadedCheckpoint, advance: Callable[[int], object]) -> None:
    """Run a batch and write its outputs.

    Args:
        batch: The batch.
        checkpoint: The weights.
        advance: Called with the number of chunks that are done.
    """
    loader = SequenceDataModule(batch.dataset, data=batch.data).eval_loader(batch.sequences)
    results = stream(
        checkpoint.detector,
        loader,
        trained_stride_us=checkpoint.windows.stride_us,
        memory_chunk=batch.memory_chunk,
        step_scale=batch.step_scale,
        config=batch.postprocess,
        advance=advance,
    )
    write_outputs(batch.path, [results[number] for number in range(len(batch.sequences))])
    for sequence in batch.sequences:
        sequence.close()


def _names(batch: RecordingBatch) -> str:
    return ", ".join(sequence.name for sequence in batch.sequences)


def _run_elsewhere(batch: RecordingBatch) -> None:
    """Run a batch in a process that may not have read the weights yet."""
    run_batch(batch, batch.weights.read(), lambda steps: None)


def _visible_gpu(number: int) -> str:
    """Return the name of a GPU from those that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[number] if visible else str(number)
