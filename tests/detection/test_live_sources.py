"""Packets of any program reach a live detector: as bytes of a pipe or a socket, and from a Python generator."""

import io
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same
from failing_disk import files_of_at_most
from live_examples import Dribble, packet_bytes, stream_head
from user_errors import raises

from rvtssm.cli import live
from rvtssm.cli import main as cli
from rvtssm.detection import configured_detector
from rvtssm.detection import feed as feed_module
from rvtssm.detection.feed import Feed, PythonSource
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.packets import PacketStream
from rvtssm.detection.predictor import Predictor
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import join_events
from rvtssm.readers.source import Arrival, LiveSource


def cut(events, num_packets):
    return [events[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(events)), num_packets)]


def as_bytes(events, num_packets=9):
    return stream_head(HEIGHT, WIDTH) + b"".join(packet_bytes(packet) for packet in cut(events, num_packets))


class OneByOne(Feed):
    """Lets each packet be computed before the next one is taken."""

    def arrivals(self):
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_read)
            if self._waiting:
                return [self._waiting.popleft()]
        return super().arrivals()


def windows_of(predictor, packets):
    run = LiveRun(
        OneByOne(PythonSource(packets, HEIGHT, WIDTH)), predictor.stream(HEIGHT, WIDTH, min_score=0.1, latest=True)
    )
    run.warm_up()
    results = []
    while not run.source.is_ended:
        results.append(run.step())
    return [result for result in results if result is not None], run


@pytest.fixture(scope="module")
def predictor(live_checkpoint):
    return Predictor(live_checkpoint())


def test_bytes_of_packets_are_their_events(draw_events):
    events = draw_events(1_000)
    stream = PacketStream(Dribble(as_bytes(events) + packet_bytes(events[:0], 8_000_000)), "a pipe")
    packets = list(stream.packets())
    assert (stream.height, stream.width, stream.broke_off) == (HEIGHT, WIDTH, "")
    assert packets[-1].until_us == 8_000_000 and {packet.until_us for packet in packets[:-1]} == {None}
    assert_same(join_events([packet.events for packet in packets if len(packet.events)]), events)


@pytest.mark.parametrize(("content", "key"), [(b"%% evt 3", "source.form"), (stream_head(0, 64), "source.form")])
def test_another_stream_is_refused(content, key):
    with raises(key):
        PacketStream(io.BytesIO(content), "a pipe")


@pytest.mark.parametrize(
    ("num_cut", "more", "said"),
    [(1, b"", "ended within a packet"), (100, b"", "ended within a packet"), (1, b"\xff" * 13, "announces a packet")],
)
def test_a_stream_that_breaks_off_says_how(draw_events, num_cut, more, said):
    whole = as_bytes(draw_events())
    stream = PacketStream(io.BytesIO((whole[:-num_cut] if not more else whole) + more), "a pipe")
    assert sum(map(len, stream.blocks())) <= 6_000
    assert said in stream.broke_off


@pytest.fixture
def piped(monkeypatch, draw_events):
    """Events of ten windows come by standard input."""
    content = as_bytes(draw_events()) + packet_bytes(draw_events()[:0], 7_500_000)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Dribble(content)))


def told_by(weights, tmp_path, where, *words):
    arguments = [f"checkpoint={weights}", f"out={tmp_path / 'out'}", "postprocess.min_score=0.1", *words]
    assert cli.main(["live", where, *arguments]) == 0
    return json.loads((tmp_path / "out" / "live.json").read_text())


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("words", [[], ["min_score=1.0"]])
def test_live_reads_packets_from_standard_input_and_knows_scores_that_it_does_not_write(weights, tmp_path, words):
    told = told_by(weights, tmp_path, "-", *words)
    assert (told["format"], told["num_events"], told["num_windows"] + told["num_passed"]) == ("packets", 6_000, 10)
    assert (told["num_detections"] == 0) == bool(words)
    assert told["highest_score"] > 0.1 and told["broke_off"] == ""


def test_a_polarity_that_is_none_is_said_with_the_name_once(draw_events):
    content = as_bytes(draw_events())
    feed = Feed(PacketStream(io.BytesIO(content[:-1] + b"\2"), "a pipe"))
    feed.begin()
    while not feed.is_ended:
        feed.arrivals()
    assert feed.broke_off.startswith("a pipe has the polarity 2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["packets", "dat"])
def test_a_signal_while_a_stream_is_silent_keeps_what_was_found(
    weights, tmp_path, monkeypatch, draw_events, number, kind
):
    """A thread waits for bytes, and the main thread for the thread."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    content = as_bytes(draw_events())
    if kind == "dat":
        write_dat(tmp_path / "sent.dat", draw_events(), HEIGHT, WIDTH)
        content = (tmp_path / "sent.dat").read_bytes()
    reader, writer = os.pipe()
    threading.Thread(target=os.write, args=(writer, content)).start()  # and never ends
    step, steps = LiveRun.step, []

    def step_and_interrupt(run):
        result = step(run)
        if result is None and steps:
            signal.raise_signal(number)
        if result is not None:
            steps.append(result)
        return result

    monkeypatch.setattr(LiveRun, "step", step_and_interrupt)
    with open(reader, "rb") as stream:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
        told = told_by(weights, tmp_path, "-")
        os.close(writer)
    signal.signal(signal.SIGINT, usual)
    lines = (tmp_path / "out" / "detections.jsonl").read_text().splitlines()
    assert len(lines) == told["num_windows"] > 0 and told["num_events"] > 0


def test_live_reads_packets_from_a_socket_and_tracks(weights, tmp_path, draw_events):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send():
            connection, _ = server.accept()
            with connection:
                for packet in cut(draw_events(), 43):
                    data = packet_bytes(packet)
                    connection.sendall(data if packet.t[0] > 7_005_000 else stream_head(HEIGHT, WIDTH) + data)
                    time.sleep(0.002)

        sender = threading.Thread(target=send)
        sender.start()
        told = told_by(weights, tmp_path, f"tcp://127.0.0.1:{server.getsockname()[1]}", "track=bytetrack")
        sender.join()
    assert told["num_events"] == 6_000 and told["num_lost_packets"] == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "detections.jsonl").read_text().splitlines()]
    assert all("track_id" in box for line in lines for box in line["detections"]) and told["num_detections"] > 0


def test_a_generator_gives_the_windows_of_the_recording(predictor, draw_events):
    """Each packet closes at most one window, and the generator waits until its boxes are there."""
    events = draw_events()
    wanted = predictor.stream(HEIGHT, WIDTH, min_score=0.1).push(events)
    found = []

    def packets():
        for start_us in range(7_000_000, 7_430_000, 50_000):
            num_found = len(found)
            yield events.between(start_us, start_us + 50_000), start_us + 50_000
            until_s = time.monotonic() + 300
            while len(found) == num_found and time.monotonic() < until_s:
                time.sleep(0.005)

    for window in predictor.live(packets(), HEIGHT, WIDTH, min_score=0.1):
        found.append(window)
    assert [window.t_us for window in found[: len(wanted)]] == [window.t_us for window in wanted]
    for mine, theirs in zip(found, wanted, strict=False):
        np.testing.assert_array_equal(mine.score, theirs.score)
        assert mine.num_passed == 0 and mine.lag_s > 0


@pytest.mark.parametrize("behind_us", [-1, 0, 5_000, 60_000, 10_000_000])
def test_any_time_before_the_next_event_is_a_legal_one(predictor, draw_events, behind_us):
    """A packet may say less than its own last event does, the same as before, or a time before all events."""
    packets = cut(draw_events(), 9)
    later_us = [int(packet.t[-1]) for packet in packets]
    untils_us = [max(time_us - behind_us, 0) for time_us in later_us] if behind_us >= 0 else [-1] * 9
    given = [(packets[0][:0], 0), *zip(packets, untils_us, strict=True)]
    wanted, _ = windows_of(predictor, packets)
    found, _ = windows_of(predictor, given)
    assert [window.t_us for window in found] == [window.t_us for window in wanted] and len(wanted) >= 5
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine.score, theirs.score)


def test_what_a_generator_raises_reaches_the_caller(predictor, draw_events):
    def packets():
        yield draw_events(100)
        raise RuntimeError("the SDK lost the camera")

    with pytest.raises(RuntimeError, match="lost the camera"):
        list(predictor.live(packets(), HEIGHT, WIDTH))
    with raises("source.broke_off"):
        list(predictor.live(iter([[1, 2]]), HEIGHT, WIDTH))
    with raises("sensor.unknown"):
        list(predictor.live(packets()))


def test_a_jump_of_the_clock_begins_a_new_stream(draw_events):
    events = draw_events(100)
    earlier = replace(events, t=events.t - 5_000_000)
    feed = Feed(PythonSource([events, earlier], HEIGHT, WIDTH))
    feed.begin()
    found = []
    while not feed.is_ended:
        found += feed.arrivals()
    assert [arrival.is_restart for arrival in found] == [False, True]


@pytest.mark.parametrize("jump_us", [700_000_000, 10**15])
def test_a_jump_of_the_clock_within_a_packet_begins_a_new_stream(predictor, draw_events, jump_us):
    events = draw_events()
    later = replace(events, t=events.t + jump_us)
    before, after = cut(events, 9), cut(later, 9)
    jumps = [(before[0][:0], 0), *before[:-1], join_events([before[-1], after[0]]), *after[1:]]
    found, run = windows_of(predictor, jumps)
    wanted, _ = windows_of(predictor, before)
    assert run.num_restarts == 1 and run.source.broke_off == ""
    assert [window.t_us for window in found] == [window.t_us + k * jump_us for k in (0, 1) for window in wanted]
    for mine, theirs in zip(found, wanted + wanted, strict=True):
        np.testing.assert_array_equal(mine.score, theirs.score)


@pytest.mark.parametrize(("place", "num_restarts", "num_left_out"), [(-1, 2, 0), (300, 0, 1)])
def test_a_single_event_of_the_far_future_does_not_end_the_boxes(
    predictor, draw_events, place, num_restarts, num_left_out
):
    packets = cut(draw_events(), 9)
    packets[4] = replace(packets[4], t=packets[4].t.copy())
    packets[4].t[place] = 10**15
    found, run = windows_of(predictor, packets)
    assert run.num_restarts == num_restarts and run.source.broke_off == ""
    assert found[-1].t_us > packets[7].t[0]
    assert run.source.source.faults.other_clock == num_left_out


@pytest.mark.parametrize("kind", ["bytes", "generator"])
def test_no_packet_is_lost_and_all_that_wait_are_taken_at_once(draw_events, kind):
    """Ten thousand packets arrive while nobody looks: more than any queue of packets would hold."""
    events = draw_events(20_000)
    packets = cut(events, 10_000)
    source = PythonSource(packets, HEIGHT, WIDTH)
    if kind == "bytes":
        source = PacketStream(io.BytesIO(as_bytes(events, 10_000)), "a pipe")
    feed = Feed(source)
    feed.begin()
    feed._thread.join()
    found = feed.arrivals()
    assert_same(join_events([arrival.events for arrival in found]), events)
    assert feed.num_lost == feed.num_lost_events == 0 and not feed.is_ended
    assert feed.arrivals() == [] and feed.is_ended
    if kind == "bytes":
        assert len(found) < 100


def test_the_oldest_events_are_dropped_and_counted_if_too_many_wait(draw_events, monkeypatch):
    monkeypatch.setattr(feed_module, "_MOST_WAITING", 300)
    monkeypatch.setattr(feed_module, "_LONGEST_WAIT_S", 0.0)
    packets = cut(draw_events(1_000), 10)
    feed = Feed(PythonSource(packets, HEIGHT, WIDTH))
    feed.begin()
    feed._thread.join()
    assert_same(join_events([arrival.events for arrival in feed.arrivals()]), join_events(packets[-3:]))
    assert (feed.num_lost, feed.num_lost_events) == (7, 700)


def test_a_jump_of_the_clock_in_dropped_events_still_begins_a_new_stream(predictor, draw_events, monkeypatch):
    monkeypatch.setattr(feed_module, "_MOST_WAITING", 300)
    monkeypatch.setattr(feed_module, "_LONGEST_WAIT_S", 0.0)
    first, *later = draw_events(100), *cut(draw_events(1_000, start_us=1_000_000), 10)
    is_taken = threading.Event()

    def sent():
        yield first
        is_taken.wait()
        yield from later

    run = LiveRun(Feed(PythonSource(sent(), HEIGHT, WIDTH)), predictor.stream(HEIGHT, WIDTH, latest=True))
    run.source.begin()
    while run.now_us is None:
        run.step()
    is_taken.set()
    run.source._thread.join()
    assert run.step().t_us <= later[-1].t[-1] and (run.num_restarts, run.source.num_lost) == (1, 7)


class Silent(LiveSource):
    """Sends what it is given, on a clock that a test sets. It does not say that time passes."""

    name, height, width, says_time, is_ended = "silent", HEIGHT, WIDTH, False, False

    def __init__(self):
        self.now_s, self.coming = 100.0, []

    def clock(self):
        return self.now_s

    def arrivals(self):
        found, self.coming = self.coming, []
        return found


@pytest.mark.parametrize("missing", ["is_ended", "arrivals"])
def test_a_live_source_says_when_it_ends_and_what_has_arrived(missing):
    members = {"is_ended": False, "arrivals": lambda self: []}
    del members[missing]
    with pytest.raises(TypeError, match=missing):
        type("Half", (LiveSource,), members)()


@pytest.mark.parametrize("heartbeat", [False, True])
def test_silence_closes_the_window_of_the_last_events_and_may_go_on(predictor, draw_events, heartbeat):
    source = Silent()
    run = LiveRun(source, predictor.stream(HEIGHT, WIDTH, min_score=0.1, latest=True), heartbeat=heartbeat)
    events = draw_events(3_000, 7_000_000, 120_000)
    source.coming = [Arrival(events, None, source.now_s)]
    assert run.step().t_us == 7_100_000  # two windows have ended; the third is open
    source.now_s += 0.05
    assert run.step() is None  # events may still be on their way
    source.now_s += 0.05
    silent = run.step()
    assert (silent.t_us, silent.num_passed) == (7_150_000, 0) and silent.lag_s < 0.1
    same = predictor.stream(HEIGHT, WIDTH, min_score=0.1, latest=True)
    same.push(events)
    np.testing.assert_array_equal(silent.score, same.push(events[:0], until_us=7_150_000)[0].score)
    found = []
    for _ in range(10):
        source.now_s += 0.05
        found += [run.step()]
    assert [window.t_us for window in found if window] == [7_200_000 + 50_000 * n for n in range(10)] * heartbeat
    # What comes after all, from the time that was closed, counts in the next window.
    late = draw_events(500, 7_130_000, 5_000)
    source.coming = [Arrival(late, 8_000_000, source.now_s)]
    assert run.step().t_us == 8_000_000
    assert run.detector.num_late == 500 and run.num_restarts == 0


def test_what_was_lost_is_told_with_the_next_result(predictor, draw_events):
    source = Silent()
    run = LiveRun(source, predictor.stream(HEIGHT, WIDTH, latest=True))
    source.coming, source.num_lost, source.num_lost_events = [Arrival(draw_events(), None, 0.0)], 3, 700
    first = run.step()
    assert (first.num_lost_packets, first.num_lost_events) == (3, 700) and first.time_s > 1.7e9
    source.coming = [Arrival(draw_events(100, 7_440_000, 100_000), None, 0.0)]
    assert (run.step().num_lost_packets, run.source.num_lost) == (0, 3)


# rates that can be sustained


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("json_word", [[], ["--json"]])
def test_hz_auto_takes_the_measured_rate_and_says_so(weights, tmp_path, monkeypatch, capsys, json_word):
    monkeypatch.setattr(configured_detector, "sustained_hz", lambda seconds, trained_hz: 2.0 * trained_hz)
    monkeypatch.setattr(live, "_STATUS_EVERY_S", 0.0)
    statuses = []
    write_status = live._Session._write_status

    def kept(session, folder):
        write_status(session, folder)
        statuses.append(json.loads((folder / "status.json").read_text()))

    monkeypatch.setattr(live._Session, "_write_status", kept)
    told = told_by(weights, tmp_path, "-", "hz=auto", *json_word)
    assert (told["hz"], told["hz_is_auto"]) == (40, True) and told["num_windows"] + told["num_passed"] == 20
    assert {(status["hz"], status["hz_is_auto"]) for status in statuses} == {(40, True)}
    printed = capsys.readouterr()
    first, *rest = (printed.err if json_word else printed.out).splitlines()
    assert "40 Hz (auto" in first and any("at 40 Hz (auto)" in line for line in rest)


@pytest.mark.usefixtures("piped")
def test_a_full_disk_is_told_and_everything_else_goes_on(weights, tmp_path, capsys):
    words = [f"checkpoint={weights}", f"out={tmp_path}", "min_score=0", "postprocess.min_score=0.1", "--json"]
    with files_of_at_most(300):
        assert cli.main(["live", "-", *words]) == 2
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert len(lines) + sum(line["num_passed"] for line in lines) == 10
    assert printed.err.count("windows cannot be written") == 1
    assert "live.json cannot be written (File too large)" in printed.err and "of 50 ms at 20 Hz" in printed.err
    assert sorted(path.name for path in tmp_path.glob("[!.]*.json*")) == ["detections.jsonl"]
    for line in (tmp_path / "detections.jsonl").read_text().splitlines():
        json.loads(line)


def test_only_live_detection_chooses_a_rate(weights, tmp_path, draw_events, refused):
    write_dat(tmp_path / "a.dat", draw_events(), HEIGHT, WIDTH)
    line = refused("predict", str(tmp_path / "a.dat"), f"checkpoint={weights}", f"out={tmp_path}", "hz=auto")
    assert "hz=auto; only live detection chooses a rate" in line


def test_a_time_range_of_a_live_source_is_refused():
    with raises("source.kind", "no time range"):
        PythonSource(iter([]), HEIGHT, WIDTH).between(0, 1)
