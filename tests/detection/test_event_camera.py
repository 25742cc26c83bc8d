"""Cameras: what a fake one sends arrives as events; live detection equals prediction, keeps up, and says what broke."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import neuromorphic_drivers
import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same
from fake_camera import BEGAN_S, FakeDevice, Packet, SimulatedClock, packets_of
from user_errors import raises

from rvtssm.cli import live as live_verb
from rvtssm.cli import main as cli
from rvtssm.detection import DetectionConfig, PredictConfig, configured_detector, result_files
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import Camera, read_camera_settings
from rvtssm.detection.feed import Replay
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import usual_downsample
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.event_checks import LiveGate
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import Detections, Events, ReadOptions, WindowSettings
from rvtssm.system.user_error import UserError

CONFIG = PostprocessConfig(max_detections=5)


class OnClock(Camera):
    """A camera whose clock is that of its fake device."""

    def clock(self) -> float:
        return self._device.clock()


def camera_of(packets, height=HEIGHT, width=WIDTH, **options):
    return OnClock(FakeDevice(packets, height, width, **options), "the camera")


def run_of(camera, checkpoint, windows=None, **options):
    size = camera.height, camera.width
    return LiveRun(camera, StreamDetector(checkpoint, *size, windows=windows, config=CONFIG, skip="late", **options))


def results_of(run):
    found = []
    while not run.source.is_ended:
        if (result := run.step()) is not None:
            found.append(result)
    return found


def joined(parts):
    return join_events([part for part in parts if len(part)])


@pytest.fixture(scope="module")
def real(golden_dir):
    """Real recordings by name: 346 x 260 over 0.17 s, and the first part of one of 1280 x 720."""
    found = {}
    for name in ("evl_sample.aedat4", "evt3_trigger_noise.raw"):
        recording = open_recording(golden_dir / "recordings" / name)
        first_us = recording.time_range_us[0]
        found[name] = copy_events(recording.between(first_us, first_us + 400_000)), recording.height, recording.width
    return found


def test_a_camera_sends_the_events_of_the_recording(real):
    events, height, width = real["evt3_trigger_noise.raw"]
    camera = camera_of(packets_of(events), height, width)
    assert_same(joined(list(camera.blocks())), events)
    assert (camera.num_events, camera.num_lost, camera.broke_off) == (len(events), 0, "")


@pytest.mark.parametrize(
    ("name", "hz", "window", "reduce"),
    [
        ("evt3_trigger_noise.raw", None, "shrink", None),
        ("evt3_trigger_noise.raw", None, None, "sum"),
        ("evl_sample.aedat4", 60, "slide", None),
    ],
)
def test_live_is_predict_on_the_file(live_checkpoint, real, tmp_path, name, hz, window, reduce):
    """A real recording through a fake camera, as through `rvtssm predict`, with a detector that takes no time."""
    events, height, width = real[name]
    checkpoint, path = live_checkpoint(), tmp_path / "events.npz"
    np.savez(path, **{name: getattr(events, name) for name in "txyp"}, height=height, width=width)
    reduced = usual_downsample(checkpoint.spec, height, width)  # as live; predict looks what finds something
    wanted: list[Detections] = []
    predict_recording(
        checkpoint,
        path,
        tmp_path / "out",
        DetectionConfig(hz, window, reduced, reduce),
        PredictConfig(formats=[]),
        postprocess=CONFIG,
        options=ReadOptions(height, width),
        on_window=lambda result: wanted.append(result.detections),
        progress=False,
    )
    run = run_of(camera_of(packets_of(events), height, width), checkpoint, checkpoint.windows_at(hz, window, reduce))
    results = results_of(run)
    found = [result.detections for result in results]
    assert not any(result.num_passed for result in results) and len(wanted) - 1 <= len(found) <= len(wanted)
    for mine, theirs in zip(found, wanted, strict=False):
        assert mine.t_us == theirs.t_us and len(mine) == len(theirs)
        np.testing.assert_allclose(mine.score, theirs.score, rtol=0, atol=1e-5)
        np.testing.assert_allclose(mine.xyxy, theirs.xyxy, rtol=1e-5, atol=1e-3)
    assert sum(map(len, wanted)) > 10


def test_predict_reads_a_camera_as_a_recording(live_checkpoint, real, tmp_path, monkeypatch):
    """Every window is computed, and what was found before the camera broke off is kept."""
    events, height, width = real["evl_sample.aedat4"]
    asked, checkpoint = [], live_checkpoint()

    def opened(**options):
        asked.append(options)
        return FakeDevice(packets_of(events), height, width, fails_with=RuntimeError("device was lost"))

    monkeypatch.setattr(neuromorphic_drivers, "open", opened)
    summary = predict_recording(
        checkpoint,
        "camera:00001",
        tmp_path / "out",
        DetectionConfig(min_score=0.0),
        PredictConfig(formats=["jsonl"]),
        postprocess=CONFIG,
        progress=False,
    )
    assert asked == [{"configuration": None, "iterator_timeout": 0.05, "serial": "00001"}]
    assert (summary.format, summary.num_events, summary.num_windows) == ("camera", len(events), 4)
    assert summary.broke_off == "Fake EVK 00001 broke off (device was lost); plug it in again and start again"


# back-pressure


def slow(monkeypatch, clock, seconds):
    """Let every computation of a detector find nothing and take that long on a simulated clock."""
    steps: list[tuple[int, int, float, int]] = []

    def compute(self, windows, dt_us):
        (frame,) = self._counter.take(windows.bounds_us)
        clock.sleep(seconds)
        ((start_us, end_us),) = windows.bounds_us.tolist()
        nothing = Detections(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), end_us)
        steps.append((start_us, end_us, float(dt_us[0]), int(frame.sum())))
        self._end_us = end_us
        yield self._result(nothing, start_us, seconds, float(dt_us[0]), frame)

    monkeypatch.setattr(StreamDetector, "_compute", compute)
    return steps


def of_bursts(seconds, num_events=60_000):
    """Few events over a long time, with a burst in every tenth second that has most of them."""
    rng = np.random.default_rng(3)
    t = rng.integers(0, seconds * 1_000_000, num_events)
    is_burst = rng.random(num_events) < 0.7
    t[is_burst] = t[is_burst] // 10_000_000 * 10_000_000 + rng.integers(0, 1_000_000, is_burst.sum())
    t = np.sort(t)
    x, y = rng.integers(0, [[WIDTH], [HEIGHT]], (2, num_events)).astype(np.uint16)
    return Events(t, x, y, rng.integers(0, 2, num_events).astype(np.uint8))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("length_us", "seconds"), [(None, 300), (50_000, 60)])
def test_a_slow_detector_never_falls_behind(live_checkpoint, monkeypatch, length_us, seconds):
    """A step takes 4 strides: 0.8 of one, five times. Five minutes pass on a simulated clock."""
    events, clock, stride_s, packet_s = of_bursts(seconds), SimulatedClock(), 0.05, 0.05
    camera = camera_of(packets_of(events, 50_000), clock=clock)
    steps = slow(monkeypatch, clock, 4 * stride_s)
    run = run_of(camera, live_checkpoint(), WindowSettings(50_000, length_us))
    results, sizes = [], []
    while not camera.is_ended:
        if (result := run.step()) is not None:
            results.append(result)
            if len(results) in (250, 1_450):
                sizes.append(resident_bytes())
    taken_s = np.array([result.num_passed + 1 for result in results]) * stride_s
    assert len(results) == pytest.approx(seconds / (4 * stride_s), rel=0.01)
    assert max(result.waited_s for result in results) < stride_s + packet_s + 0.001
    assert max(np.array([result.lag_s for result in results][1:]) / taken_s[1:]) < 2
    assert camera._device.longest_backlog <= 4 * stride_s / packet_s + 1  # no more packets than arrive during a step
    assert sizes[-1] - sizes[0] < 1_200 * 3_000  # bytes: what this test itself keeps of a result
    assert sum(step_us for *_, step_us, _ in steps) == pytest.approx(1e6 * seconds, rel=0.005)  # the true time
    if length_us is None:
        assert all(before[1] == after[0] for before, after in pairwise(steps))
        assert sum(count for *_, count in steps) > 0.97 * len(events)  # those of the last window are left
    else:
        assert {end - start for start, end, *_ in steps} == {length_us}


def test_a_reader_that_is_too_slow_drops_and_counts(live_checkpoint, monkeypatch):
    """If reading takes longer than events take to arrive, what waits is dropped and counted."""
    clock = SimulatedClock()
    camera = camera_of(packets_of(of_bursts(6), 1_000), clock=clock)
    slow(monkeypatch, clock, 0.05)
    push = LiveGate.push
    monkeypatch.setattr(LiveGate, "push", lambda *arguments: (clock.sleep(0.003), push(*arguments))[1])
    results = results_of(run_of(camera, live_checkpoint()))
    assert camera.num_lost > 1_500 and len(results) > 6
    assert max(result.lag_s for result in results) < 0.5 + 0.05 + 0.05 + 0.01


def test_a_full_ring_is_counted():
    clock = SimulatedClock()
    camera = camera_of(packets_of(of_bursts(2)), clock=clock, ring_length=10)
    camera.arrivals()
    clock.sleep(1.0)
    assert sum(len(part) for part in camera.blocks()) < 60_000
    assert camera.num_lost == 190


# what cameras do


def one_packet(arrives_s, current_us, t_us):
    part = np.zeros(len(t_us), [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
    part["t"] = t_us
    return Packet(BEGAN_S + arrives_s, current_us, part)


def test_events_that_are_late_get_the_time_before_them():
    camera = camera_of([one_packet(0.1, 5_000, [1_000, 4_000, 2_000]), one_packet(0.2, 9_000, [4_500, 8_000])])
    first, second = camera.blocks()
    assert first.t.tolist() == [1_000, 4_000, 4_000] and second.t.tolist() == [5_000, 8_000]
    assert camera.faults.backward_steps == 1


def test_events_outside_the_sensor_are_dropped_and_counted():
    packet = one_packet(0.1, 5_000, [1, 2, 3])
    packet.polarity_events["x"] = [0, WIDTH, 5]
    camera = camera_of([packet])
    assert [part.t.tolist() for part in camera.blocks()] == [[1, 3]]
    assert camera.faults.out_of_frame == 1


@pytest.mark.parametrize("jump_us", [-4_000_000, 3_600_000_000])
def test_a_jump_of_the_clock_begins_a_new_stream(live_checkpoint, draw_events, jump_us):
    """Within a packet or between two: what follows is found as if the camera had been started then."""
    checkpoint, events = live_checkpoint(), draw_events(2_000, 9_000_000, 160_000)
    later = Events(events.t + jump_us, events.x, events.y, events.p)
    packets = packets_of(events)
    packets += packets_of(later, began_s=packets[-1].arrives_s)
    merged = np.concatenate([packets[31].polarity_events, packets[32].polarity_events])
    packets[31:33] = [Packet(packets[32].arrives_s, packets[32].current_t, merged)]
    run = run_of(camera_of(packets), checkpoint)
    windows = results_of(run)
    assert run.num_restarts == 1 and len(windows) == 6
    alone = run_of(camera_of(packets_of(events)), checkpoint)
    wanted = results_of(alone)
    for mine, theirs in zip(windows, wanted + wanted, strict=True):
        np.testing.assert_array_equal(mine.score, theirs.score)
    camera = camera_of(packets)
    assert sum(map(len, camera.blocks())) == len(events)
    assert f"has jumped to {later.t[0]} us" in camera.broke_off


def test_a_silence_is_windows_without_events(live_checkpoint, draw_events):
    """The camera sends its time although nothing moves; where it sends nothing at all, no window closes."""
    events = draw_events(duration_us=100_000)
    quiet = [Packet(BEGAN_S + 0.1 + 0.1 * i, 7_100_000 + 100_000 * i, None) for i in range(1, 6)]
    run = run_of(camera_of([*packets_of(events), *quiet]), live_checkpoint())
    results = results_of(run)
    assert results[-1].t_us == 7_600_000 and sum(1 + result.num_passed for result in results) == 12


def test_a_recording_plays_at_its_own_pace(live_checkpoint, golden_dir):
    """Twice as fast, with a pause and a jump back; everything that is due arrives, and nothing before it is due."""
    recording = open_recording(golden_dir / "recordings" / "evt3_events_ros2_1_wrap24.ecf.hdf5")
    clock = SimulatedClock()
    replay = Replay(recording, "sample", clock, clock.sleep)
    first_us = replay.first_us
    replay.set_speed(2)

    def play(seconds):
        parts, until_s = [], clock() + seconds
        while clock() < until_s:
            parts += [copy_events(arrival.events) for arrival in replay.arrivals()]
        return joined(parts)

    found = play(0.2)
    assert replay.now_us == pytest.approx(first_us + 400_000, abs=11_000)
    assert_same(found, recording.between(first_us, replay.now_us))
    replay.pause(True)
    clock.sleep(50)
    assert replay.arrivals() == [] and replay.backlog == 0
    replay.pause(False)
    replay.set_speed(1)
    at_us = replay.now_us
    assert_same(play(0.1), recording.between(at_us, replay.now_us))
    replay.seek(first_us + 100_000)
    run = run_of(replay, live_checkpoint())
    results = []
    while replay.now_us < first_us + 260_000:
        results.append(run.step())
    assert len([result for result in results if result is not None]) == 3
    replay.seek(replay.last_us - 20_000)
    results_of(run)
    assert replay.is_ended and run.num_restarts == 1


# settings and commands


def test_settings_of_a_camera_are_those_of_the_package(tmp_path):
    path = tmp_path / "camera.yaml"
    path.write_text(
        "device: prophesee_evk4\nbiases: {diff_on: 20, fo: -5}\nx_mask: [[0, 3], [1279, 1280]]\n"
        "clock: external\nrate_limiter: {reference_period_us: 200, maximum_events_per_period: 4000}\n"
    )
    evk4 = neuromorphic_drivers.prophesee_evk4
    wanted = evk4.Configuration(biases=evk4.Biases(diff_on=20, fo=-5), clock=evk4.Clock.EXTERNAL)
    mask = evk4.RowColumnMask(set=False)
    mask.set_x_range(0, 3, 1)
    mask.set_x_range(1279, 1280, 1)
    wanted.x_mask, wanted.rate_limiter = mask.x_mask(), evk4.RateLimiter(200, 4000)
    found = read_camera_settings(path, neuromorphic_drivers)
    assert found == wanted and found.serialize() == wanted.serialize()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("biases: {}", "setting.choice"),
        ("device: webcam", "setting.choice"),
        ("device: prophesee_evk4\nbiases: {gain: 3}", "setting.unknown"),
        ("device: prophesee_evk4\nbiases: 3", "setting.form"),
        ("device: prophesee_evk4\nclock: atomic", "setting.choice"),
        ("device: prophesee_evk4\nx_mask: [[5, 2000]]", "setting.out_of_range"),
        ("device: [", "file.content"),
    ],
)
def test_settings_that_no_camera_has_are_one_line(tmp_path, text, key):
    path = tmp_path / "camera.yaml"
    path.write_text(text)
    with raises(key) as error:
        read_camera_settings(path, neuromorphic_drivers)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.fixture
def plugged_in(monkeypatch, draw_events):
    """A function: options of a `FakeDevice` -> the device, which `live` and `predict` open as their camera."""

    def plug(**options) -> FakeDevice:
        device = FakeDevice(packets_of(draw_events()), HEIGHT, WIDTH, **options)
        monkeypatch.setattr(neuromorphic_drivers, "open", lambda **_: device)
        monkeypatch.setattr(Camera, "clock", lambda self: self._device.clock())
        return device

    return plug


@pytest.mark.parametrize("is_json", [False, True])
def test_live_writes_and_tells_what_it_finds(weights, tmp_path, plugged_in, capsys, is_json):
    device = plugged_in(fails_with=OSError("cable pulled"))
    words = ["live", f"checkpoint={weights}", f"out={tmp_path / 'out'}", "postprocess.min_score=0.1"]
    assert cli.main([*words, *["--json"] * is_json]) == 2
    shown = capsys.readouterr()
    assert "Fake EVK 00001 broke off (cable pulled); plug it in again and start again; what was" in " ".join(
        shown.err.split()
    )
    told = json.loads((tmp_path / "out" / "live.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out" / "detections.jsonl").read_text().splitlines()]
    assert (told["num_events"], told["num_windows"], told["num_passed"]) == (6_000, 8, 0)
    assert told["num_detections"] == sum(len(line["detections"]) for line in lines) > 0
    assert not device.is_open
    if is_json:
        printed = [json.loads(line) for line in shown.out.splitlines()]
        assert [(line["t_us"], line["detections"]) for line in printed] == [
            (line["t_us"], line["detections"]) for line in lines
        ]
    else:
        assert "6000 events" in shown.out and "8 windows" in shown.out


@pytest.mark.parametrize("ended_by", ["the reader of the pipe", "events that cannot be used"])
def test_live_keeps_what_it_found_before_something_else_ends_it(
    weights, tmp_path, monkeypatch, capsys, plugged_in, ended_by
):
    plugged_in()
    lines, step = [], LiveRun.step

    def say(text):
        lines.append(text)
        if ended_by == "the reader of the pipe" and len(lines) == 3:
            raise SystemExit(1)

    def step_or_fail(run):
        if len(lines) == 3:
            raise UserError("stream.full", "too many events wait")
        return step(run)

    monkeypatch.setattr(live_verb, "say", say)
    monkeypatch.setattr(LiveRun, "step", step_or_fail)
    assert cli.main(["live", f"checkpoint={weights}", f"out={tmp_path}", "--json"]) == 2
    reason = {"the reader of the pipe": "the program that reads the lines has ended"}.get(
        ended_by, "too many events wait"
    )
    assert f"{reason}; what was found before is kept" in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "live.json").read_text())["broke_off"] == reason
    assert len((tmp_path / "detections.jsonl").read_text().splitlines()) == 3


KILLED = """
import os, signal, sys
from rvtssm.cli import live, main
printed, say = [], live.say
def say_and_end(text):
    say(text)
    printed.append(text)
    if len(printed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
live.say = say_and_end
main.main(sys.argv[1:])
"""


def test_a_killed_run_loses_no_line_and_the_next_one_begins_new_files(weights, tmp_path, draw_events):
    """Every format is whole at any moment."""
    write_dat(tmp_path / "a_td.dat", draw_events(), HEIGHT, WIDTH)
    out = tmp_path / "out"
    words = ["live", str(tmp_path / "a_td.dat"), f"checkpoint={weights}", f"out={out}", "min_score=0.1", "downsample=1"]
    words += ["formats=[jsonl,npy,coco]", "--json"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    printed = [json.loads(line) for line in killed.stdout.splitlines()]
    lines = [json.loads(line) for line in (out / "detections.jsonl").read_text().splitlines()]
    assert [(line["t_us"], line["detections"]) for line in printed] == [
        (line["t_us"], line["detections"]) for line in lines
    ]
    num_boxes = sum(len(line["detections"]) for line in lines)
    assert len(np.load(out / "detections.npy")) == len(json.loads((out / "coco_results.json").read_text())) == num_boxes
    before = {path.name: path.read_bytes() for path in out.glob("[!.]*")}
    assert cli.main(words) == 0
    assert {path.name: path.read_bytes() for path in out.glob("[!.]*") if path.name in before} == before
    assert (out / "detections_2.jsonl").is_file() and (out / "live_2.json").is_file()


def test_a_full_disk_is_told_once_and_detection_goes_on(weights, tmp_path, monkeypatch, capsys, plugged_in):
    write_at, calls = result_files._write_at, []

    def full(file, start, data):
        calls.append(len(data))
        if 3 <= len(calls) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(file, start, data)

    monkeypatch.setattr(result_files, "_write_at", full)
    plugged_in()
    assert cli.main(["live", f"checkpoint={weights}", f"out={tmp_path}", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("detection goes on") == shown.err.count("are written again") == 1
    told = json.loads((tmp_path / "live.json").read_text())
    lines = [json.loads(line)["t_us"] for line in (tmp_path / "detections.jsonl").read_text().splitlines()]
    printed = [json.loads(line)["t_us"] for line in shown.out.splitlines()]
    assert told["num_unwritten"] == len(printed) - len(lines) > 0 and set(lines) < set(printed)
    assert "not written, because the disk was full" in " ".join(shown.err.split())


@pytest.mark.parametrize("content", ['{"mine": 1}', "[1]", "7", "mine"])
def test_a_status_of_someone_else_is_neither_replaced_nor_removed(weights, tmp_path, refused, plugged_in, content):
    plugged_in()
    (tmp_path / "status.json").write_text(content)
    words = "live", f"checkpoint={weights}", f"out={tmp_path}"
    assert "written by someone else" in " ".join("".join(refused(*words)).split())
    assert (tmp_path / "status.json").read_text() == content and not (tmp_path / "live.json").exists()
    (tmp_path / "status.json").write_text('{"time_s": 1, "pid": 1, "host": "a"}')  # of a run that was killed
    plugged_in()
    assert cli.main([*words]) == 0 and not (tmp_path / "status.json").exists()


@pytest.mark.parametrize("weights_are", ["there", "gone", "of other classes"])
def test_a_service_tells_its_minutes_and_loads_its_weights_again(
    weights, tmp_path, monkeypatch, capsys, plugged_in, weights_are
):
    own, step, statuses = tmp_path / "own.ckpt", LiveRun.step, []
    own.write_bytes(weights.read_bytes())

    def step_and_ask(run):
        statuses.append((tmp_path / "out" / "status.json").is_file() and run.detector)
        if len(statuses) == 4:
            if weights_are == "gone":
                own.unlink()
            elif weights_are == "of other classes":
                read = read_checkpoint(own)
                spec = replace(read.spec, class_names=read.spec.class_names[::-1])
                write_checkpoint(own, read.detector, replace(read, spec=spec))
            signal.raise_signal(signal.SIGUSR1)
        return step(run)

    plugged_in()
    monkeypatch.setattr(LiveRun, "step", step_and_ask)
    for name in ("_STATUS_EVERY_S", "_TOLD_EVERY_S"):
        monkeypatch.setattr(live_verb, name, 0.01)
    assert cli.main(["live", f"checkpoint={own}", f"out={tmp_path / 'out'}", "--json"]) == 0
    shown = capsys.readouterr()
    detectors = {id(detector) for detector in statuses if detector}
    assert len(detectors) == 1 + (weights_are == "there") and not (tmp_path / "out" / "status.json").exists()
    assert re.search(r"\d{4}-\d\d-\d\dT.* INFO the last minute: \d+ windows?, \d+ box", shown.err)
    said = "goes on with the weights that" if weights_are == "there" else "cannot be loaded again"
    assert said in " ".join(shown.err.split())
    assert len(shown.out.splitlines()) >= 5


def test_live_says_how_to_play_a_file_that_is_named_as_a_camera(weights, tmp_path, refused):
    (file := tmp_path / "short_td.dat").touch()
    assert f"to play it, set recording={file}" in "".join(
        refused("live", f"camera={file}", f"checkpoint={weights}", f"out={tmp_path / 'out'}").split("\n")
    )


def test_live_says_that_a_recording_is_shorter_than_a_window(weights, tmp_path, capsys, draw_events):
    write_dat(tmp_path / "short_td.dat", draw_events(1_000, 0, 20_000), HEIGHT, WIDTH)
    words = ["live", str(tmp_path / "short_td.dat"), f"checkpoint={weights}", f"out={tmp_path}"]
    assert cli.main([*words, "--json"]) == 0
    shown, told = capsys.readouterr(), json.loads((tmp_path / "live.json").read_text())
    assert (told["num_events"], told["num_windows"]) == (1_000, 0)
    assert told["source"] == str(tmp_path / "short_td.dat")  # with the topic, if there is one
    assert "short_td ends before its first window does" in " ".join(shown.err.split())
    assert cli.main([*words, "hz=200", "formats=[]"]) == 0
    assert "ends before" not in capsys.readouterr().err


@pytest.mark.parametrize(("given", "taken"), [(None, 3), (2, 2)])
def test_live_reduces_a_recording_as_predict_would(weights, tmp_path, monkeypatch, draw_events, given, taken):
    write_dat(tmp_path / "a_td.dat", draw_events(1_000, 0, 20_000), HEIGHT, WIDTH)
    monkeypatch.setattr(configured_detector, "choose_downsample", lambda *_: 3)
    words = [f"downsample={given}"] * (given is not None)
    assert cli.main(["live", str(tmp_path / "a_td.dat"), f"checkpoint={weights}", f"out={tmp_path}", *words]) == 0
    assert json.loads((tmp_path / "live.json").read_text())["downsample"] == taken


def of_slow_replay(weights, tmp_path, monkeypatch, *words, prepare_s=0.0, step_s=0.2):
    """`live.json` of a recording of two seconds, if windows take `step_s`, and the first one `prepare_s` more."""
    clock = SimulatedClock()
    write_dat(tmp_path / "a_td.dat", of_bursts(2), HEIGHT, WIDTH)
    monkeypatch.setattr(Replay.__init__, "__defaults__", (clock, clock.sleep))
    slow(monkeypatch, clock, step_s)
    compute, rest_s = StreamDetector._compute, [prepare_s]

    def slower_at_first(*args):
        clock.sleep(rest_s.pop() if rest_s else 0.0)
        yield from compute(*args)

    monkeypatch.setattr(StreamDetector, "_compute", slower_at_first)
    given = [f"checkpoint={weights}", f"out={tmp_path}", "formats=[]", *words]
    assert cli.main(["live", str(tmp_path / "a_td.dat"), *given]) == 0
    return json.loads((tmp_path / "live.json").read_text())


@pytest.mark.parametrize(("hz", "step_s"), [(20, 0.2), (100, 0.1)])
def test_live_counts_the_windows_that_it_passes_over(weights, tmp_path, monkeypatch, hz, step_s):
    told = of_slow_replay(weights, tmp_path, monkeypatch, f"hz={hz}", step_s=step_s)
    assert told["num_passed"] > 20 and told["num_windows"] == pytest.approx(2 / step_s, abs=2)
    assert told["step_ms"]["p50"] == pytest.approx(1000 * step_s)


def test_a_recording_plays_when_the_detector_is_prepared(weights, tmp_path, monkeypatch):
    """A start of three seconds is no part of the lag, and no window is passed over because of it."""
    told = of_slow_replay(weights, tmp_path, monkeypatch, prepare_s=3, step_s=0.02)
    assert told["num_passed"] == 0 and told["num_windows"] >= 38
    assert told["step_ms"]["p90"] == pytest.approx(20) and told["lag_ms"]["max"] < 40


def test_without_a_camera_or_the_package_there_is_one_line(weights, tmp_path, monkeypatch, refused):
    def fails(**_):
        raise RuntimeError("device not found")

    monkeypatch.setattr(neuromorphic_drivers, "open", fails)
    words = ["live", f"checkpoint={weights}", f"out={tmp_path / 'out'}"]
    said = refused(*words)
    assert "the camera: it cannot be opened (device not found; found: no camera); plug it in" in said
    listed = [SimpleNamespace(name=SimpleNamespace(value="Prophesee EVK4"), serial="00050001", error=None)]
    monkeypatch.setattr(neuromorphic_drivers, "list_devices", lambda: listed)
    monkeypatch.setattr(neuromorphic_drivers, "open", lambda **_: (_ for _ in ()).throw(RuntimeError("Other error")))
    said = refused(*words, "camera=00051234")
    assert "camera 00051234: it cannot be opened (found: Prophesee EVK4 00050001); plug it in" in said
    monkeypatch.setitem(sys.modules, "neuromorphic_drivers", None)
    assert "bash scripts/install.sh camera" in refused(*words)
    assert not Path(tmp_path / "out").exists()
