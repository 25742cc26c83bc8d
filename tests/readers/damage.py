"""What every reader owes a damaged file: the events that are still right, or a ValueError that names the file."""

from pathlib import Path

import numpy as np
from event_examples import assert_same

from rvtssm.readers import open_recording
from rvtssm.readers.recording import join_events
from rvtssm.records import Events


def read_or_refuse(path: Path, content: bytes, *size: int) -> Events | None:
    """The events of a file with this content, None where it is refused; anything else fails the test."""
    path.unlink(missing_ok=True)  # because a disk may wait before it replaces a file
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


def assert_every_cut_is_noticed(path: Path, content: bytes, whole: Events, *size: int) -> int:
    """Cut at any byte, a file gives a beginning of its events, or none and an error. Return the longest beginning."""
    longest = 0
    for num_bytes in range(len(content)):
        found = read_or_refuse(path, content[:num_bytes], *size)
        if found is not None:
            n = len(found)
            longest = max(n, longest)
            assert_same(found, Events(whole.t[:n], whole.x[:n], whole.y[:n], whole.p[:n]))
    return longest
