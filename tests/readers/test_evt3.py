"""EVT3: round trips through an encoder, the traps of its clock, and a real recording."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from evt3_encoder import ADDR_X, ADDR_Y, OTHER_Y, TIME_HIGH, TIME_LOW, VECT_12, VECT_BASE_X, encode, word, write_words
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.readers import ReadFaults, open_recording


def read(path, words, tail=b""):
    recording = open_recording(write_words(path / "a.raw", words, HEIGHT, WIDTH, tail), repair=True)
    return recording.read(), recording.faults


@settings(max_examples=50)
@given(events=any_events(), use_vectors=st.booleans(), use_noise=st.booleans())
def test_round_trip(tmp_path_factory, events, use_vectors, use_noise):
    path = tmp_path_factory.mktemp("evt3") / "a.raw"
    recording = open_recording(write_words(path, encode(events, use_vectors, use_noise), HEIGHT, WIDTH))
    assert (recording.format, recording.height, recording.width) == ("evt3", HEIGHT, WIDTH)
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()


def test_time_wraps_every_24_bits_also_when_the_file_starts_just_before(tmp_path):
    events = random_events(4000, span_us=40_000_000, start_us=(1 << 24) - 100_000)
    assert events.t[0] < 1 << 24 and events.t[-1] > 3 << 24
    found, faults = read(tmp_path, encode(events))
    assert_same(found, events)
    assert faults == ReadFaults()


def test_a_small_step_back_is_a_glitch_and_not_a_wrap(tmp_path):
    pixel = [word(ADDR_Y, 1), word(ADDR_X, 1)]
    high = [[word(TIME_HIGH, value), word(TIME_LOW, 0), *pixel] for value in (100, 99, 101)]
    low = [[word(TIME_LOW, value), *pixel] for value in (811, 800, 900)]
    found, faults = read(tmp_path, [w for group in high + low for w in group])
    base = 101 << 12
    assert found.t.tolist() == [100 << 12, 100 << 12, base, base + 811, base + 811, base + 900]
    assert faults == ReadFaults(backward_steps=2)


def test_a_glitch_just_after_the_clock_has_wrapped_is_no_second_wrap(tmp_path):
    pixel = [word(ADDR_Y, 1), word(ADDR_X, 1)]
    found, faults = read(tmp_path, [w for high in (4095, 0, 4095, 0, 1) for w in (word(TIME_HIGH, high), *pixel)])
    assert found.t.tolist() == [value << 12 for value in (4095, 4096, 4096, 4096, 4097)]
    assert faults == ReadFaults(backward_steps=1)


def test_a_repeated_upper_time_keeps_the_lower_and_a_new_one_clears_it(tmp_path):
    pixel = [word(ADDR_Y, 1), word(ADDR_X, 1)]
    words = [word(TIME_HIGH, 2), word(TIME_LOW, 7), word(TIME_HIGH, 2), *pixel, word(TIME_HIGH, 3), *pixel]
    assert read(tmp_path, words)[0].t.tolist() == [(2 << 12) + 7, 3 << 12]


def test_nothing_is_emitted_before_time_and_row_are_known(tmp_path):
    pixel = word(ADDR_X, 1)
    words = [word(ADDR_Y, 1), pixel, word(TIME_LOW, 3), pixel, word(TIME_HIGH, 1), pixel]
    words += [word(OTHER_Y, 4), pixel, word(ADDR_Y, 5), pixel]
    assert_same(read(tmp_path, words)[0], to_events([4096] * 2, [1] * 2, [1, 5], [0] * 2))


def test_pixels_outside_are_dropped_and_an_odd_byte_is_counted(tmp_path):
    words = [word(TIME_HIGH, 1), word(ADDR_Y, 2), word(VECT_BASE_X, 60 | 1 << 11), word(VECT_12, 0xFFF)]
    words += [word(ADDR_X, 64), word(ADDR_Y, 48), word(ADDR_X, 0)]
    found, faults = read(tmp_path, words, tail=b"\x01")
    assert_same(found, to_events([4096] * 4, [60, 61, 62, 63], [2] * 4, [1] * 4))
    assert faults == ReadFaults(out_of_frame=10, truncated_bytes=1)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("% evt 3.0\n% geometry 346x260\n% end\n", (260, 346)),
        ("% format EVT3;height=320;width=300\n", (320, 300)),
        ("% evt 3.0\n% plugin_name hal_plugin_gen41_evk3\n", (720, 1280)),
        ("% evt 3.0\n% plugin_name hal_plugin_gen3_fx3\n", (480, 640)),
    ],
)
def test_the_size_comes_from_wherever_the_header_has_it(tmp_path, header, size):
    (tmp_path / "a.raw").write_bytes(header.encode() + np.array([word(TIME_HIGH, 1)], "<u2").tobytes())
    recording = open_recording(tmp_path / "a.raw")
    assert (recording.height, recording.width) == size


def test_a_size_from_the_caller_beats_a_camera_name(tmp_path):
    (tmp_path / "a.raw").write_bytes(b"% evt 3.0\n% plugin_name hal_plugin_gen41_evk3\n\x01\x80")
    assert open_recording(tmp_path / "a.raw", 360, 640).height == 360
