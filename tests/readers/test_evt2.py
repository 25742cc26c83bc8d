"""EVT2 and EVT2.1: round trips through an encoder, the traps of their clock, both orders of the 64-bit words."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, any_events, assert_same, random_events, to_events
from evt2_encoder import OTHERS, TIME_HIGH, encode_evt2, encode_evt21, time_high, write_evt2, write_evt21
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.readers import ReadFaults, open_recording

WRAP_US = 1 << 34


def event(t=0, x=1, y=2, p=1) -> int:
    return p << 28 | (t & 0x3F) << 22 | x << 11 | y


def in_64_bits(words, mask=1):
    return [word << 32 | (mask if word >> 28 <= 1 else 0) for word in words]


def read(folder, words, version=2, tail=b""):
    path = folder / "a.raw"
    if version == 2:
        write_evt2(path, words, HEIGHT, WIDTH, tail)
    else:
        write_evt21(path, in_64_bits(words), HEIGHT, WIDTH, tail)
    recording = open_recording(path, repair=True)
    return recording.read(), recording.faults


@settings(max_examples=50)
@given(events=any_events(max_start_us=1 << 40), use_noise=st.booleans())
def test_evt2_round_trip(tmp_path_factory, events, use_noise):
    path = tmp_path_factory.mktemp("evt2") / "a.raw"
    recording = open_recording(write_evt2(path, encode_evt2(events, use_noise), HEIGHT, WIDTH))
    assert (recording.format, recording.height, recording.width) == ("evt2", HEIGHT, WIDTH)
    start_us = (events.t[0] >> 34 << 34) if len(events) else 0  # the clock has no more bits
    assert_same(recording.read(), to_events(events.t - start_us, events.x, events.y, events.p))
    assert recording.faults == ReadFaults()


@settings(max_examples=50)
@given(events=any_events(), use_vectors=st.booleans(), use_noise=st.booleans(), is_legacy=st.booleans())
def test_evt21_round_trip(tmp_path_factory, events, use_vectors, use_noise, is_legacy):
    path = tmp_path_factory.mktemp("evt21") / "a.raw"
    words = encode_evt21(events, use_vectors, use_noise)
    recording = open_recording(write_evt21(path, words, HEIGHT, WIDTH, is_legacy=is_legacy))
    assert (recording.format, recording.has_swapped_halves) == ("evt21", is_legacy)
    assert_same(recording.read(), events)
    assert recording.faults == ReadFaults()


@pytest.mark.parametrize("version", [2, 21])
def test_time_wraps_after_34_bits_and_a_small_step_back_is_a_glitch(tmp_path, version):
    late = 2 * WRAP_US - 1_100_000  # after a silence; what is less than a second behind may be from before the wrap
    times = [WRAP_US - 100, WRAP_US - 300, WRAP_US - 50, WRAP_US + 5, WRAP_US + 70, late, 2 * WRAP_US + 3]
    words = [word for t in times for word in (time_high(t % WRAP_US), event(t))]
    found, faults = read(tmp_path, words, version)
    assert found.t.tolist() == [times[0], times[0], *times[2:]]
    assert faults == ReadFaults(backward_steps=1)


@pytest.mark.parametrize("version", [2, 21])
def test_a_late_event_just_after_the_clock_has_wrapped_is_no_second_wrap(tmp_path, version):
    times = [WRAP_US - 100, WRAP_US + 200, WRAP_US - 50, WRAP_US + 300]
    found, faults = read(tmp_path, [word for t in times for word in (time_high(t % WRAP_US), event(t))], version)
    assert found.t.tolist() == [times[0], times[1], times[1], times[3]]
    assert faults == ReadFaults(backward_steps=1)


@pytest.mark.parametrize("version", [2, 21])
@pytest.mark.parametrize("place", [1001, (1 << 14) - 1])  # in a block, and as the last word of one of EVT2.1
def test_an_event_after_a_stray_time_is_left_out_wherever_the_blocks_end(tmp_path, version, place):
    words = [word for t in range(0, 640_000, 64) for word in (time_high(t), event(t))]
    words.insert(place, time_high(1 << 33))
    found, faults = read(tmp_path, words, version)
    assert (len(found), faults) == (9_999, ReadFaults(other_clock=1))


@pytest.mark.parametrize("version", [2, 21])
def test_nothing_is_emitted_before_the_time_is_known(tmp_path, version):
    found, _ = read(tmp_path, [event(), OTHERS << 28, event(), time_high(640), event(5)], version)
    assert found.t.tolist() == [645]


@pytest.mark.parametrize(("version", "tail"), [(2, b"123"), (21, b"1234567")])
def test_pixels_outside_are_dropped_and_a_cut_word_is_counted(tmp_path, version, tail):
    words = [time_high(0), event(x=WIDTH), event(y=HEIGHT), event(x=WIDTH - 1, y=HEIGHT - 1, p=0)]
    found, faults = read(tmp_path, words, version, tail)
    assert_same(found, to_events([0], [WIDTH - 1], [HEIGHT - 1], [0]))
    assert faults == ReadFaults(out_of_frame=2, truncated_bytes=len(tail))


def test_a_word_past_the_edge_keeps_its_pixels_inside(tmp_path):
    words = [TIME_HIGH << 60, event(x=WIDTH - 2) << 32 | 0xFFFFFFFF]
    recording = open_recording(write_evt21(tmp_path / "a.raw", words, HEIGHT, WIDTH), repair=True)
    assert recording.read().x.tolist() == [WIDTH - 2, WIDTH - 1]
    assert recording.faults == ReadFaults(out_of_frame=30)


@pytest.mark.parametrize(
    ("lines", "is_legacy"),
    [
        ("format EVT21;height=48;width=64;endianness=legacy", True),
        ("format EVT21;width=64;height=48;endianness=little", False),
        ("format EVT21;height=48;width=64\n% endianness legacy", True),
        ("evt 2.1\n% geometry 64x48", False),
        ("evt 2.1\n% geometry 64x48\n% system_ID 49", True),  # an EVK3, before there was a choice
        ("evt 2.1\n% geometry 64x48\n% system_ID 49\n% integrator_name Another", False),
        ("evt 2.1\n% geometry 64x48\n% system_ID 64", False),
    ],
)
def test_the_order_of_halves_comes_from_the_header(tmp_path, lines, is_legacy):
    events = random_events(50)
    content = np.array(encode_evt21(events), "<u8")
    if is_legacy:
        content = content << np.uint64(32) | content >> np.uint64(32)
    (tmp_path / "a.raw").write_bytes(f"% {lines}\n% end\n".encode() + content.tobytes())
    assert_same(open_recording(tmp_path / "a.raw").read(), events)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("system_ID 21", (480, 640)),
        ("system_ID 48", (720, 1280)),
        ("sensor_generation 4.2", (720, 1280)),
        ("sensor_name GenX320", (320, 320)),
        ("generation 3.1", (480, 640)),
    ],
)
def test_a_camera_gives_the_size_where_the_header_has_none(tmp_path, line, size):
    (tmp_path / "a.raw").write_bytes(f"% {line}\n% evt 2.0\n".encode() + np.array([time_high(0)], "<u4").tobytes())
    recording = open_recording(tmp_path / "a.raw")
    assert (recording.height, recording.width) == size


def test_words_that_look_like_a_header_line_are_words(tmp_path):
    header = b"% evt 3.0\n% geometry 64x48\n"  # without `% end`, as before 2021
    words = np.array([0x2025, 0x0A80, 0x8001, 0x6007, 0x0003, 0x2005], "<u2")
    assert words.tobytes().startswith(b"% \x80\n")
    (tmp_path / "a.raw").write_bytes(header + words.tobytes())
    assert_same(open_recording(tmp_path / "a.raw").read(), to_events([4103], [5], [3], [0]))
