"""The index of a recording: for any time, a state from which decoding can resume.

The index is built in one pass and saved in the user's cache or below RVTSSM_CACHE_DIR, under a name that depends on the
path of the recording. The index file identifies the content and the settings of the recording, and has a checksum. An
index that does not match is built again. If an index cannot be written, the error is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.readers.faults import are_multiples
from rvtssm.readers.gate import LATEST_US, EventBuffer
from rvtssm.system.files import atomic_file, cache_folder

_MAGIC = b"rvtssm index 7\n"  # increase the number when a decoder or this layout changes
# parts of the file that distinguish recordings with the same size and time stamp
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = hashlib.sha256().digest_size

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordingIndex:
    """Where the K blocks of a recording begin. Each block holds at least one event."""

    states: Ints  # (K, S) decoder state at the start of each block
    latest_us: Ints  # (K,) time of the last event of each block
    num_before: Ints  # (K + 1,) number of events before each block, then of all events
    last_state: Ints  # (S,) decoder state after the last block, with the faults of the whole recording
    first_us: int  # time of the first event, 0 if there are no events
    is_multiple: bool  # whether all times are multiples of 1000

    @property
    def num_events(self) -> int:
        return int(self.num_before[-1])

    def blocks(self, start_us: int, end_us: int) -> tuple[int, int]:
        """Return the range of blocks that may contain events with start_us <= t < end_us."""
        first = int(np.searchsorted(self.latest_us, start_us))
        stop = min(int(np.searchsorted(self.latest_us, end_us)) + 1, len(self.latest_us))
        return first, max(first, stop)

    def part(self, start_us: int, end_us: int) -> RecordingIndex:
        """Return the index of the blocks that may contain events with start_us <= t < end_us."""
        first, stop = self.blocks(start_us, end_us)
        states = self.states[first:stop]
        latest_us = self.latest_us[first:stop]
        return replace(self, states=states, latest_us=latest_us, num_before=self.num_before[first : stop + 1])


def index_of(
    block_sizes: Iterator[int], state: Ints, buffer: EventBuffer, first_state: Callable[[], Ints]
) -> RecordingIndex:
    """Return the index of a recording that is decoded from its start.

    Args:
        block_sizes: Decodes block after block into the buffer, advances the state, and yields the number of events.
        state: The state at the start of the file.
        buffer: Room for the events of a block.
        first_state: Returns the state at the first event, once it was decoded.
    """
    # The state before each block, and what the block holds.
    states: list[Ints] = []
    latest_us: list[np.int64] = []
    counts = [0]
    first_us = 0
    is_multiple = True
    before = state.copy()
    for count in block_sizes:
        if not states:
            first_us = int(buffer.t[0])
            before = first_state()
        is_multiple = is_multiple and are_multiples(buffer.t[:count])
        states.append(before)
        latest_us.append(state[LATEST_US])
        counts.append(count)
        before = state.copy()
    # (K, S) states and (K,) times.
    blocks = np.array(states, np.int64).reshape(len(states), len(state)), np.array(latest_us, np.int64)
    return RecordingIndex(*blocks, np.cumsum(counts, dtype=np.int64), state, first_us, is_multiple)


def identity_of(path: Path, settings: bytes) -> bytes:
    """Return a digest of what an index depends on: size, time stamp and samples of the file, and the settings.

    Args:
        path: The recording.
        settings: The settings of its reader.
    """
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns} ".encode() + settings)
        for offset in np.linspace(0, max(0, stat.st_size - _SAMPLE_BYTES), _SAMPLES).astype(int):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def load_index(path: Path, identity: bytes) -> RecordingIndex | None:
    """Return the saved index of a recording, or None if no valid index is found.

    Args:
        path: The recording.
        identity: Its present identity, see `identity_of`.
    """
    try:
        content = index_path(path).read_bytes()
    except OSError:
        return None
    head = _MAGIC + identity
    data = content[len(head) + _DIGEST_BYTES :]
    is_valid = content.startswith(head) and content[len(head) :].startswith(hashlib.sha256(data).digest())
    return _from_bytes(data) if is_valid else None


def save_index(path: Path, identity: bytes, index: RecordingIndex) -> None:
    """Save an index. An error is ignored.

    Args:
        path: The recording.
        identity: The identity of the recording that the index was built from.
        index: The index.
    """
    data = _to_bytes(index)
    with contextlib.suppress(OSError), atomic_file(index_path(path)) as staged:  # or another thread was faster
        staged.write_bytes(_MAGIC + identity + hashlib.sha256(data).digest() + data)


def index_folder() -> Path:
    """Return the folder that holds all indexes."""
    return cache_folder() / "indexes"


def index_path(path: Path) -> Path:
    """Return the file that holds the index of a recording."""
    return index_folder() / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.index"


def _to_bytes(index: RecordingIndex) -> bytes:
    numbers = [len(index.states), len(index.last_state), index.first_us, index.is_multiple]
    parts = (np.array(numbers, np.int64), index.last_state, index.states, index.latest_us, index.num_before)
    return b"".join(np.ascontiguousarray(part, "<i8").tobytes() for part in parts)


def _from_bytes(data: bytes) -> RecordingIndex:
    values = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
    num_blocks, num_slots, first_us, is_multiple = map(int, values[:4])
    sizes = (num_slots, num_blocks * num_slots, num_blocks)
    last_state, states, latest_us, num_before = np.split(values[4:], np.cumsum(sizes))
    return RecordingIndex(
        states.reshape(num_blocks, num_slots), latest_us, num_before, last_state, first_us, bool(is_multiple)
    )
