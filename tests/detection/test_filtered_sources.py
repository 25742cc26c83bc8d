"""Filters of events as steps of every source, and what the bundled weights find in noise and before lamps with them."""

import io
import json

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same
from live_examples import packet_bytes, stream_head

import rvtssm
from rvtssm.cli import main as cli
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.feed import PythonSource
from rvtssm.detection.packets import PacketStream
from rvtssm.detection.sources import EventsInMemory
from rvtssm.detection.window_results import WindowResult
from rvtssm.models import PostprocessConfig
from rvtssm.readers.filters import FilterChain
from rvtssm.readers.gate import copy_events, join_events
from rvtssm.records import Events
from tests.noise_examples import lamps, noise, ordered
from tests.readers.format_encoders import write_dat_file
from tests.user_errors import raises

SENSOR_HW = 240, 304


def boxes(events: Events, size_hw, filters=(), min_score=0.3) -> int:
    """Boxes that the bundled weights find."""
    height, width = size_hw
    options = {"downsample": 1, "filters": filters, "min_score": min_score}
    return sum(map(len, rvtssm.load().predict(events, height=height, width=width, **options)))


@pytest.mark.parametrize("flicker_hz", [50.0, 100.0])
def test_before_lamps_there_is_no_box_with_filters(flicker_hz):
    rng = np.random.default_rng(0)
    events = ordered(lamps(rng, SENSOR_HW, flicker_hz, 500_000), noise(rng, SENSOR_HW, 1.0, 500_000))
    assert boxes(events, SENSOR_HW) > 10  # persons
    assert boxes(events, SENSOR_HW, ["flicker", "background"]) == 0


def test_in_noise_there_is_no_box_with_filters(golden_dir):
    recording = rvtssm.open(golden_dir / "recordings" / "evt3_trigger_noise.raw")
    first_us = recording.time_range_us[0]
    events = recording.between(first_us, first_us + 250_000)
    events = events[(events.x < 640) & (events.y >= 480)]  # where most of the noise is
    events, size_hw = Events(events.t, events.x, events.y - np.uint16(480), events.p), (240, 640)
    assert boxes(events, size_hw, min_score=0.1) > 0
    assert boxes(events, size_hw, ["background"], min_score=0.1) == 0


@pytest.fixture
def noisy() -> Events:
    rng = np.random.default_rng(1)
    hot = np.arange(0, 500_000, 2_000), np.full(250, 9), np.full(250, 7), np.zeros(250)
    return ordered(noise(rng, (HEIGHT, WIDTH), 4.0, 500_000), hot)


FILTERS = ["background", {"region": {"left": 8}}]


@pytest.mark.parametrize("kind", ["packets", "generator", "memory", "file"])
def test_every_source_is_filtered_alike(noisy, weights, tmp_path, kind):
    """Filters act in the detector, so a source only has to give its events."""
    parts = [noisy[i : i + 97] for i in range(0, len(noisy), 97)]
    content = stream_head(HEIGHT, WIDTH) + b"".join(map(packet_bytes, parts))
    source = {
        "packets": lambda: PacketStream(io.BytesIO(content), "packets"),
        "generator": lambda: PythonSource(parts, HEIGHT, WIDTH),
        "memory": lambda: EventsInMemory(noisy, HEIGHT, WIDTH),
        "file": lambda: rvtssm.open(write_dat_file(tmp_path / "noise.dat", noisy)),
    }[kind]()
    seen = list[Events]()
    detector = rvtssm.load(weights).stream(HEIGHT, WIDTH, filters=FILTERS)
    windows = list(rvtssm.detect(source, detector, lambda block: seen.append(copy_events(block))))
    kept = FilterChain(FILTERS, HEIGHT, WIDTH)(noisy)
    assert 0 < len(kept) < len(noisy) and len(windows) >= 10
    assert_same(join_events(seen), kept)


def test_results_draw_the_events_that_the_filters_keep(noisy, weights, tmp_path):
    path = write_dat_file(tmp_path / "noise.dat", noisy)
    kept = FilterChain(FILTERS, HEIGHT, WIDTH)(noisy)
    for window in rvtssm.load(weights).predict(path, filters=FILTERS)[2:5]:
        assert_same(window.read(window.start_us, window.t_us), kept.between(window.start_us, window.t_us))


def test_predict_live_and_inspect_filter_and_say_how_much(noisy, weights, tmp_path, refused, printed_by, capsys):
    path = write_dat_file(tmp_path / "noise.dat", noisy)
    chain = FilterChain(FILTERS, HEIGHT, WIDTH)
    kept = chain(noisy)
    given = "filters=[background,{region:{left:8}}]"
    for verb, file in (("predict", "prediction.json"), ("live", "live.json")):
        words = [f"checkpoint={weights}", f"out={tmp_path / verb}", given, "formats=[jsonl]"]
        assert cli.main([verb, str(path), *words]) == 0
        said = json.loads((tmp_path / verb / file).read_text())
        assert said["num_events"] == len(kept) and said["removed"] == pytest.approx(chain.removed())
        shares = ", ".join(f"{100 * share:.1f} % ({name})" for name, share in chain.removed().items())
        assert f"filters removed {shares}" in " ".join(capsys.readouterr().out.split())
    assert json.loads(printed_by("inspect", str(path), given, "--json", f"out={tmp_path / 'inspect'}"))[
        "num_events"
    ] == len(kept)
    assert "choose from background, hot_pixels, flicker" in refused("predict", str(path), *words[:2], "filters=[blur]")


def test_a_wrong_format_does_not_blame_the_file(noisy, tmp_path):
    path = write_dat_file(tmp_path / "noise.dat", noisy)
    with raises("setting.choice"):
        rvtssm.open(path, format="raw")


def test_live_in_python_filters_packets(noisy, weights):
    detector, given = rvtssm.load(weights), [{"region": {"left": WIDTH - 1}}]
    windows = list(detector.live([noisy], HEIGHT, WIDTH, filters=given, min_score=0.0))
    kept = FilterChain(given, HEIGHT, WIDTH)(noisy)
    assert len(windows) == 1 and 0 < len(kept) < len(noisy)
    expected = detector.stream(HEIGHT, WIDTH, min_score=0.0, latest=True).push(kept)
    np.testing.assert_array_equal(windows[0].score, expected[0].score)


def test_a_stream_filters_packets_and_refuses_to_store_their_state(noisy, live_checkpoint):
    weights = live_checkpoint()
    kept = FilterChain(FILTERS, HEIGHT, WIDTH)(noisy)
    config = PostprocessConfig(min_score=0.0)
    filtering = StreamDetector(weights, HEIGHT, WIDTH, filters=FILTERS, config=config)
    windows = list[WindowResult]()
    for i in range(0, len(noisy), 97):
        windows += filtering.push(noisy[i : i + 97])
    windows += filtering.finish()
    plain = StreamDetector(weights, HEIGHT, WIDTH, config=config)
    for window, expected in zip(windows, plain.push(kept) + plain.finish(), strict=True):
        np.testing.assert_array_equal(window.score, expected.score)
    assert 0.0 < filtering.filters.removed()["background"] < 1.0
    with raises("setting.conflict"):
        filtering.state_dict()
