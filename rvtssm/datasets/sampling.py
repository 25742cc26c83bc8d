"""Batches as plans: which steps of which recording go into which batch, decided before anything is read.

A plan depends only on the seed, the epoch and the position in the epoch. Batches are therefore the same for any number
of loader workers, and a sampler resumes from two integers.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from rvtssm.datasets import SamplingConfig
from rvtssm.system.user_error import UserError

# Purposes of random numbers, each with its own seeds, so that they are independent of each other.
_STREAM_ORDER, _LABEL_ORDER, _STREAM_AUGMENT, _RANDOM_AUGMENT, _WINDOWS = range(5)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Steps [start, stop) of one recording. An empty request takes the place of a stream that has ended."""

    recording: int  # index in the split, -1 for an empty request
    start: int
    stop: int
    is_first: bool  # the state before this chunk is zero
    slot: int  # stream slot of this process, -1 for a random chunk
    augment_seed: int  # equal for all chunks of a recording in a stream
    kind: int = 0  # index of the kind of windows that the recording is counted with

    @property
    def is_empty(self) -> bool:
        return self.stop == self.start


def chunks_of(num_steps: int, length: int) -> list[tuple[int, int]]:
    """Split the steps of a recording into consecutive chunks. The last one may be shorter.

    Args:
        num_steps: Number of steps.
        length: Steps per chunk.

    Returns:
        [start, stop) of each chunk.
    """
    return [(start, min(start + length, num_steps)) for start in range(0, num_steps, length)]


def random_chunk(label_step: int, num_steps: int, length: int) -> tuple[int, int]:
    """Return the chunk that ends with a labelled step, or the first chunk if too few steps come before it.

    Args:
        label_step: The labelled step.
        num_steps: Number of steps of the recording.
        length: Steps per chunk.

    Returns:
        [start, stop).
    """
    start = max(label_step + 1 - length, 0)
    return start, min(start + length, num_steps)


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def _drawn(kinds: Sequence[int], augment_seed: int) -> int:
    return kinds[_seed(augment_seed, _WINDOWS) % len(kinds)]


def _empty(slot: int) -> ChunkRequest:
    return ChunkRequest(-1, 0, 0, is_first=False, slot=slot, augment_seed=0)


@dataclass(eq=False)
class MixedBatchSampler(Sampler[list[ChunkRequest]]):
    """Plans training batches: random chunks first, then one chunk of every stream slot.

    The sampler knows the place that a training has reached: `epoch`, and `batch` within the epoch. Iterating does not
    advance the place: the consumer calls `advance` for each batch.

    Streams: each epoch shuffles all recordings, joins all their chunks in this order and divides them into equal parts,
    one per slot of all processes. A recording that is split by this starts from the zero state in the next slot. An
    epoch reads every chunk once, in a multiple of `accumulate` batches. Slots that end early get empty requests. Random
    chunks end at a labelled step. Labelled steps are drawn without replacement across epochs and processes.

    Recordings may be given with several kinds of windows: all with the first kind, then all with the second, and so on,
    with the same labels. The augment seed of a random chunk chooses its kind from `random_kinds`, and that of a
    recording in the streams of an epoch chooses from `stream_kinds`.

    Args:
        num_steps: Number of steps of each sequence.
        label_steps: The labelled steps of each sequence, ascending.
        config: Composition of batches.
        seed: Seed of all random choices.
        rank: Rank of this process.
        world_size: Number of processes.
        random_kinds: Kinds that random chunks draw from. A kind that is listed twice is drawn twice as often.
        stream_kinds: The same for streams.
        accumulate: Batches per optimiser step. An epoch has a multiple of this number of batches.

    Raises:
        UserError: No recording has a label for random chunks, or a step for streams.
    """

    num_steps: Sequence[int]
    label_steps: Sequence[npt.NDArray[np.int64]]
    config: SamplingConfig
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    random_kinds: Sequence[int] = (0,)
    stream_kinds: Sequence[int] = (0,)
    accumulate: int = 1

    def __post_init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.num_recordings = len(self.num_steps) // len({*self.random_kinds, *self.stream_kinds})
        self.num_streams = self.config.num_streams
        self.num_random = self.config.num_chunks - self.num_streams
        # (N, 2): recording of each labelled step, and its number among the labelled steps of this recording
        counts = np.array([*map(len, self.label_steps[: self.num_recordings])], np.int64)
        recording, first = np.repeat([np.arange(len(counts)), counts.cumsum() - counts], counts, axis=1)
        self._labelled = np.stack([recording, np.arange(len(recording)) - first], axis=1)
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None
        if self.num_random and not len(self._labelled):
            raise UserError("labels.missing", found=f"none of {self.num_recordings} training recordings has a label")
        if self.num_streams and not any(self.num_steps):
            raise UserError("labels.missing", found=f"none of {self.num_recordings} training recordings has a step")
        self._first = [0]  # number of batches before each epoch, computed on demand

    def __len__(self) -> int:
        """Return the number of batches of this epoch, the same for every process."""
        return self.length(self.epoch)

    def __iter__(self) -> Iterator[list[ChunkRequest]]:
        """Return the batches from the current place to the end of the epoch."""
        return self.batches(self.epoch, self.batch)

    def advance(self) -> None:
        """Note that one batch has been consumed."""
        self.batch += 1
        if self.batch == self.length(self.epoch):
            self.epoch = self.epoch + 1
            self.batch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a stored place. Raise ValueError if it does not exist in these data."""
        length = self.length(state["epoch"])
        if not 0 <= state["batch"] < length:
            advice = "resume with the data, batch size and number of processes of the interrupted run"
            found = f"the run stopped at batch {state['batch']} of an epoch, which has {length} batches now"
            raise UserError("run.other_settings", found=found, advice=advice)
        self.epoch = state["epoch"]
        self.batch = state["batch"]

    def batches(self, epoch: int, first: int) -> Iterator[list[ChunkRequest]]:
        """Return the batches of an epoch from the `first` on."""
        slots = self._slots(epoch)
        before = self._first_batch(epoch)
        for batch in range(first, self.length(epoch)):
            yield self._random_requests(before + batch) + [slot[batch] for slot in slots]

    def length(self, epoch: int) -> int:
        """Return the number of batches of an epoch, the same for every process."""
        return self._first_batch(epoch + 1) - self._first_batch(epoch)

    def _first_batch(self, epoch: int) -> int:
        """Return the number of batches before an epoch."""
        while len(self._first) <= epoch:
            self._first.append(self._first[-1] + self._num_batches(len(self._first) - 1))
        return self._first[epoch]

    def _num_batches(self, epoch: int) -> int:
        if not self.num_streams:
            num_chunks = len(self._labelled)
            in_batch = self.num_random
        else:
            num_chunks = sum(len(self._chunks(r, kind)) for r, (_, kind) in enumerate(self._streams(epoch)))
            in_batch = self.num_streams
        num_batches = math.ceil(num_chunks / (in_batch * self.world_size))
        return math.ceil(num_batches / self.accumulate) * self.accumulate

    def _chunks(self, recording: int, kind: int) -> list[tuple[int, int]]:
        return chunks_of(self.num_steps[kind * self.num_recordings + recording], self.config.chunk_length)

    def _streams(self, epoch: int) -> list[tuple[int, int]]:
        """Return the augment seed and the kind of windows of each recording in the streams of an epoch."""
        streams = []
        for recording in range(self.num_recordings):
            seed = _seed(self.seed, _STREAM_AUGMENT, epoch, recording)
            streams.append((seed, _drawn(self.stream_kinds, seed)))
        return streams

    def _slots(self, epoch: int) -> list[list[ChunkRequest]]:
        """Return the requests of each slot of this process, equally many for all slots."""
        if not self.num_streams:
            return []
        order = np.random.default_rng([self.seed, _STREAM_ORDER, epoch]).permutation(self.num_recordings).tolist()
        streams = self._streams(epoch)
        line = [(r, start, stop) for r in order for start, stop in self._chunks(r, streams[r][1])]
        num_slots = self.num_streams * self.world_size
        cuts = (np.arange(num_slots + 1) * len(line) // num_slots).tolist()
        slots = []
        for slot in range(self.num_streams):
            begin, end = cuts[self.rank * self.num_streams + slot :][:2]
            requests = []
            for i, (r, start, stop) in enumerate(line[begin:end]):
                requests.append(ChunkRequest(r, start, stop, start == 0 or i == 0, slot, *streams[r]))
            slots.append(requests + [_empty(slot)] * (self.length(epoch) - len(requests)))
        return slots

    def _random_requests(self, batch: int) -> list[ChunkRequest]:
        """Return the random chunks of this process in the `batch`-th batch since the first epoch."""
        first = (batch * self.world_size + self.rank) * self.num_random
        requests = []
        for draw in range(first, first + self.num_random):
            again, place = divmod(draw, len(self._labelled))
            recording, number = self._labelled[self._shuffled(again)[place]].tolist()
            seed = _seed(self.seed, _RANDOM_AUGMENT, draw)
            kind = _drawn(self.random_kinds, seed)
            sequence = kind * self.num_recordings + recording
            step = int(self.label_steps[sequence][number])
            start, stop = random_chunk(step, self.num_steps[sequence], self.config.chunk_length)
            requests.append(ChunkRequest(recording, start, stop, True, -1, seed, kind))
        return requests

    def _shuffled(self, again: int) -> npt.NDArray[np.int64]:
        """Return the order of the labelled steps in the `again`-th pass over them."""
        if self._order is None or self._order[0] != again:
            rng = np.random.default_rng([self.seed, _LABEL_ORDER, again])
            self._order = again, rng.permutation(len(self._labelled))
        return self._order[1]


class EvalBatchSampler(Sampler[list[ChunkRequest]]):
    """Plans evaluation batches: each recording is read completely, from its start, in one slot of one process.

    The longest recordings come first, each in the slot that is free earliest. Slots that have ended leave the batch. A
    process that ends early gets batches with one empty request, so that all processes have equally many batches.

    Args:
        num_steps: Number of steps of each sequence.
        chunk_length: Steps per chunk.
        batch_size: Number of slots of a process.
        rank: Rank of this process.
        world_size: Number of processes.
    """

    def __init__(
        self, num_steps: Sequence[int], chunk_length: int, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        queue = [(0, slot) for slot in range(batch_size * world_size)]
        contents: list[list[tuple[int, int, int]]] = [[] for _ in queue]
        for recording in sorted(range(len(num_steps)), key=lambda r: -num_steps[r]):
            used, slot = heapq.heappop(queue)
            chunks = chunks_of(num_steps[recording], chunk_length)
            contents[slot] += [(recording, start, stop) for start, stop in chunks]
            heapq.heappush(queue, (used + len(chunks), slot))
        # slots alternate between processes, so that each has its share of the longest recordings
        slots = []
        for slot, requests in enumerate(contents[rank::world_size]):
            slots.append([ChunkRequest(r, start, stop, start == 0, slot, 0) for r, start, stop in requests])
        self._batches: list[list[ChunkRequest]] = []
        for batch in range(max(map(len, contents))):
            running = [slot[batch] for slot in slots if batch < len(slot)]
            self._batches.append(running or [_empty(0)])

    def __len__(self) -> int:
        """Return the number of batches, the same for every process."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[ChunkRequest]]:
        return iter(self._batches)
