"""Prophesee's codec ECF: decode one chunk of bytes to events, and check every byte.

A chunk holds times, then rows, then columns and polarities, each packed in runs. If runs would take more space, columns
and polarities are packed together, if necessary with the rows.
Source: prophesee-ai/hdf5_ecf 8735ce7 (ecf_codec.cpp), for the order of bits.
"""

import numpy as np

from rvtssm.readers.gate import LATEST_POSSIBLE_US
from rvtssm.system.jit import jit

MAX_CHUNK_EVENTS = 65535  # the limit of the codec
SLACK = 128  # places after the last event, so that short runs can be written with a fixed length
_HEAD_BYTES = 12
_MAX_SHIFT = 56  # a time step has at most this many bits before its last four
_PACKED_COLUMNS, _PACKED_ROWS = 1, 2  # flags of a chunk: columns packed with polarities; rows packed as well


@jit
def decode_chunk(data, num_events, t, x, y, p):  # type: ignore[no-untyped-def]
    """Decode a chunk into t, x, y, p, which have room for MAX_CHUNK_EVENTS + SLACK events.

    The chunk must hold at least `num_events` events and may hold more. Return the number of bytes used, or
    ~position of the first invalid byte.
    """
    if len(data) < _HEAD_BYTES:
        return ~len(data)
    head = _number(data, 0, 4)
    in_chunk = head >> 2
    if in_chunk < num_events or in_chunk > MAX_CHUNK_EVENTS:
        return ~0
    position = _decode_times(data, in_chunk, t)
    if head & _PACKED_ROWS:
        return _decode_packed(data, position, in_chunk, 4, y, x, p)
    position = _decode_rows(data, position, in_chunk, y)
    if head & _PACKED_COLUMNS:
        return _decode_packed(data, position, in_chunk, 2, y, x, p)
    position = _decode_columns(data, position, in_chunk, x)
    return _decode_polarities(data, position, in_chunk, p)


@jit
def _number(data, position, num_bytes):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(num_bytes):
        value |= np.int64(data[position + i]) << (8 * i)
    return value


@jit
def _long_run(data, position, filled, in_chunk):  # type: ignore[no-untyped-def]
    """Return the position after the two bytes of a run's length, ~position if that is too long, and the length."""
    if position + 2 > len(data):
        return ~position, 0
    length = _number(data, position, 2)
    position += 2
    return position if filled + length <= in_chunk else ~position, length


@jit
def _decode_times(data, in_chunk, t):  # type: ignore[no-untyped-def]
    """Decode a start time, then one byte per run: 4 bits of time step, 4 bits of length.

    A byte whose upper half is 15 comes before a run and holds 4 bits of a long step. Branches on the kind of a byte
    would be hard to predict, so both cases are computed and one is selected without a branch.
    """
    time = _number(data, 4, 8)
    position = _HEAD_BYTES
    shift = filled = step = np.int64(0)
    while filled < in_chunk:
        if position >= len(data) or shift > _MAX_SHIFT or time < 0 or time >= LATEST_POSSIBLE_US:
            return ~position
        upper, length = np.int64(data[position] >> 4), np.int64(data[position] & 0xF)
        position += 1
        part = -np.int64(upper == 15)  # all bits set for a part of a long step, none for a run
        time += (step + upper) & ~part
        step = (step | length << shift) & part
        shift = (shift + 4) & part
        if length == 15 and not part:
            position, length = _long_run(data, position, filled, in_chunk)
            if position < 0:
                return position
            t[filled : filled + length] = time
        else:
            for i in range(16):
                t[filled + i] = time
        filled += length & ~part
    return position if filled == in_chunk and 0 <= time < LATEST_POSSIBLE_US else ~position


@jit
def _decode_rows(data, position, in_chunk, y):  # type: ignore[no-untyped-def]
    """Decode two bytes per run: 11 bits of row, 5 bits of length; 31 means that the next two bytes hold the length."""
    filled = np.int64(0)
    while position >= 0 and filled < in_chunk:
        if position + 2 > len(data):
            return ~position
        value = _number(data, position, 2)
        position += 2
        row, length = value >> 5, value & 0x1F
        if length < 31:
            for i in range(32):
                y[filled + i] = row
        else:
            position, length = _long_run(data, position, filled, in_chunk)
            if position < 0:
                return position
            y[filled : filled + length] = row
        filled += length
    return position if filled <= in_chunk or position < 0 else ~position


@jit
def _decode_columns(data, position, in_chunk, x):  # type: ignore[no-untyped-def]
    """Decode two bytes per group: 11 bits of column, then one bit for each of the next five columns.

    The last group may contain more events than the chunk, because the encoder reads beyond the end of its input.
    """
    filled = np.int64(0)
    while position >= 0 and filled < in_chunk:
        if position + 2 > len(data):
            return ~position
        value = _number(data, position, 2)
        position += 2
        column = value >> 5
        x[filled] = column
        filled += 1
        for i in range(5):
            x[filled] = column + i + 1
            filled += (value >> (4 - i)) & 1
    return position


@jit
def _decode_polarities(data, position, in_chunk, p):  # type: ignore[no-untyped-def]
    """Decode one byte per run: polarity, 7 bits of length. Length 127 means that the next two bytes hold the length."""
    filled = np.int64(0)
    while position >= 0 and filled < in_chunk:
        if position >= len(data):
            return ~position
        polarity, length = data[position] >> 7, np.int64(data[position] & 0x7F)
        position += 1
        if length <= 16:
            for i in range(16):
                p[filled + i] = polarity
        elif length < 127:
            for i in range(length):
                p[filled + i] = polarity
        else:
            position, length = _long_run(data, position, filled, in_chunk)
            if position < 0:
                return position
            p[filled : filled + length] = polarity
        filled += length
    return position if filled <= in_chunk or position < 0 else ~position


@jit
def _decode_packed(data, position, in_chunk, num_bytes, y, x, p):  # type: ignore[no-untyped-def]
    """Decode four events from three numbers of 2 or 4 bytes. Each event has 11 bits of column and one bit of polarity.

    With 4 bytes, 11 bits of row come before the column.
    """
    end = position + (in_chunk + 3) // 4 * 3 * num_bytes
    if position < 0:
        return position
    if end > len(data):
        return ~len(data)
    part = 2 * num_bytes  # each number holds three quarters of one event and a quarter of another
    for i in range(0, in_chunk, 4):
        a, b = _number(data, position, num_bytes), _number(data, position + num_bytes, num_bytes)
        c = _number(data, position + 2 * num_bytes, num_bytes)
        position += 3 * num_bytes
        second = (a & ((1 << part) - 1)) | (b >> 2 * part) << part
        third = (b & ((1 << 2 * part) - 1)) | (c >> 3 * part) << 2 * part
        values = (a >> part, second, third, c & ((1 << 3 * part) - 1))
        for j in range(4):
            x[i + j] = (values[j] >> 1) & 0x7FF
            p[i + j] = values[j] & 1
            if num_bytes == 4:
                y[i + j] = (values[j] >> 12) & 0x7FF
    return end
