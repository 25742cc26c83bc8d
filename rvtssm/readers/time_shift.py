"""The time that Prophesee's SDK subtracts from the events of a RAW file, so that labels made with it begin near 0.

It is the first TIME_HIGH word of the file; of EVT3, the step before it. Source: OpenEB, hal/cpp/include/metavision/hal/
decoders.
"""

import numpy as np

from rvtssm.readers.byte_recording import ByteRecording
from rvtssm.readers.evt21 import Evt21Recording
from rvtssm.readers.recording import Recording

# by format: the dtype of a word, its bits below the type, microseconds per step, and how many steps the SDK goes back
_TIME_HIGH = {"evt2": ("<u4", 28, 64, 0), "evt21": ("<u4", 28, 64, 0), "evt3": ("<u2", 12, 4096, 1)}
_TYPE = 0x8
_SEARCHED_BYTES = 1 << 20  # a camera writes the time every few microseconds


def time_shift_us(recording: Recording) -> int | None:
    """Return the time shift of a recording in microseconds; None if its format does not tell it."""
    if not isinstance(recording, ByteRecording) or recording.format not in _TIME_HIGH:
        return None
    dtype, num_bits, step_us, back = _TIME_HIGH[recording.format]
    with open(recording.path, "rb") as file:
        file.seek(recording._data_offset)
        content = file.read(_SEARCHED_BYTES)
    words = np.frombuffer(content, dtype, len(content) // np.dtype(dtype).itemsize)
    if isinstance(recording, Evt21Recording):  # the upper halves of its words have the layout of EVT2
        words = words[int(not recording.has_swapped_halves) :: 2]
    found = words[words >> num_bits == _TYPE]
    if not len(found):
        return None
    steps = int(found[0]) & ((1 << num_bits) - 1)
    return step_us * max(steps - back, 0)
