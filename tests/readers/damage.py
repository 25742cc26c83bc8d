"""What every reader owes a damaged file: the events that are still right, or a ValueError that names the file."""

from pathlib import Path

import numpy as np
from event_examples import assert_same
from hypothesis import strategies as st

from rvtssm.readers import open_recording
from rvtssm.readers.recording import join_events
from rvtssm.records import Events

FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4)


def read_or_refuse(path: Path, content: bytes, *size: int) -> Events | None:
    """The events of a file with this content, None where it is refused; anything else fails the test."""
    path.write_bytes(content)
    recording = None
    try:
        recording = open_recording(path, *size)
        events = join_events(list(recording.iterate(1 << 8)))
    except ValueError as error:
        assert str(path) in str(error)
        return None
    finally:
        if recording is not None:
            recording.close()
    assert np.all(np.diff(events.t) >= 0)
    assert not len(events) or (events.x.max() < recording.width and events.y.max() < recording.height)
    assert np.isin(events.p, (0, 1)).all()
    return events


def flipped(content: bytes, flips: list[tuple[float, int]]) -> bytes:
    """The content with bytes changed at relative places."""
    damaged = bytearray(content)
    for place, mask in flips:
        damaged[int(place * len(damaged))] ^= mask
    return bytes(damaged)


def assert_every_cut_is_noticed(path: Path, content: bytes, whole: Events, *size: int, first: int = 0) -> None:
    """Cut at any byte from the first, a file gives a beginning of its events, or none and an error."""
    for num_bytes in range(first, len(content)):
        found = read_or_refuse(path, content[:num_bytes], *size)
        if found is not None:
            n = len(found)
            assert_same(found, Events(whole.t[:n], whole.x[:n], whole.y[:n], whole.p[:n]))
