"""Tiles of a frame: boxes inside a tile are those of the whole, and an object on a seam is found once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rvtssm
from rvtssm.boxes import pairwise_iou
from rvtssm.contrib.demo.generate_recordings import simulated_recording
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.tiles import Tiles
from rvtssm.models import PostprocessConfig
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import Detections, Events
from rvtssm.system.user_error import UserError

TILE_HW = 96, 128
SENSOR_HW = 168, 224  # 2x2 tiles of TILE_HW, which overlap by a quarter
CONFIG = PostprocessConfig(min_score=0.3, max_detections=100)


@pytest.fixture(scope="module")
def street() -> Events:
    """A simulated street as large as a tile."""
    config = SyntheticConfig(seed=33, duration_s=0.4)
    return join_events([copy_events(block) for block in simulated_recording(config, "test", 0, TILE_HW)[0]])


@pytest.fixture(scope="module")
def weights():
    return rvtssm.load("street-tiny").checkpoint


def boxes_of(weights, events, sensor_hw, tiles=None) -> list[Detections]:
    detector = StreamDetector(weights, *sensor_hw, tiles=tiles, downsample=1, config=CONFIG)
    return [result.detections for result in detector.push(events, int(events.t[-1]) + 1)]


def moved(events: Events, x: int, y: int) -> Events:
    return Events(events.t, events.x + np.uint16(x), events.y + np.uint16(y), events.p)


@pytest.mark.parametrize("corner", [(96, 0), (0, 72)])
def test_boxes_inside_a_tile_are_those_of_a_sensor_of_its_size(weights, street, corner):
    x, y = corner
    left, top = (32 if x else 0), (24 if y else 0)  # the part of the tile that no other tile shows
    is_own = (street.x >= left) & (street.x < left + 96) & (street.y >= top) & (street.y < top + 72)
    own = Events(street.t[is_own], street.x[is_own], street.y[is_own], street.p[is_own])
    alone = boxes_of(weights, own, TILE_HW)
    tiled = boxes_of(weights, moved(own, x, y), SENSOR_HW, "2x2")
    assert sum(map(len, alone)) >= 2
    for mine, expected in zip(tiled, alone, strict=True):
        assert mine.class_id.tolist() == expected.class_id.tolist()
        np.testing.assert_allclose(mine.score, expected.score, atol=1e-5)
        np.testing.assert_allclose(mine.xyxy, expected.xyxy + np.array([x, y, x, y]), atol=1e-2)


def test_a_street_on_the_seams_is_found_once(weights, street):
    tiled = boxes_of(weights, moved(street, 48, 36), SENSOR_HW, "2x2")
    whole = boxes_of(weights, moved(street, 48, 36), SENSOR_HW)
    assert sum(map(len, whole)) >= 3
    num_matched = 0
    for mine, expected in zip(tiled, whole, strict=True):
        same_class = mine.class_id[:, None] == mine.class_id
        overlap = pairwise_iou(mine.xyxy, mine.xyxy) * same_class - np.eye(len(mine))
        assert overlap.max(initial=0) < 0.5
        num_matched += int((pairwise_iou(mine.xyxy, expected.xyxy).max(axis=0, initial=0) > 0.5).sum())
    assert num_matched == sum(map(len, whole))


@settings(max_examples=200)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    size=st.integers(8, 120),
    place=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    downsample=st.integers(1, 3),
)
def test_an_object_that_each_tile_shows_in_part_is_one_box(grid, size, place, downsample):
    frame_hw = 240, 304
    tiles = Tiles.of(f"{grid[0]}x{grid[1]}", frame_hw)
    start = np.array(place) * (np.array(frame_hw[::-1]) - size)
    expected = np.concatenate([start, start + size])
    found = []
    for x, y in tiles.corners:
        height, width = tiles.tile_hw
        visible = np.clip(expected - [x, y, x, y], 0, [width, height, width, height])
        is_seen = (visible[2:] - visible[:2] > 2).all()
        box = visible[None] if is_seen else np.empty((0, 4))
        score = np.full(len(box), 0.5 + 0.4 * (visible[2:] - visible[:2]).prod() / size**2, np.float32)
        found.append(Detections(np.float32(box * downsample), score, np.zeros(len(box), np.int64), 7))
    merged = tiles.merged(found, downsample, None)
    assert len(merged) == 1 and merged.t_us == 7
    np.testing.assert_allclose(merged.xyxy[0], expected * downsample, atol=3.1 * downsample)


def test_tiles_cover_the_frame_and_one_tile_is_the_frame():
    frames = np.arange(2 * 3 * 48 * 64, dtype=np.int64).reshape(2, 3, 48, 64)
    assert np.array_equal(Tiles.of(None, (48, 64)).cut(frames)[:, 0], frames)
    tiles = Tiles.of("3x2", (48, 64))
    cut = tiles.cut(frames)
    assert cut.shape == (2, 6, 3, *tiles.tile_hw) and set(cut.flat) == set(frames.flat)


@pytest.mark.parametrize(
    ("text", "key"), [("2", "setting.form"), ("0x2", "setting.form"), ("8x8", "setting.out_of_range")]
)
def test_numbers_of_tiles_that_cannot_be_are_refused(text, key):
    with pytest.raises(UserError) as raised:
        Tiles.of(text, (40, 40))
    assert raised.value.key == key


def test_predict_and_live_cut_frames_as_the_engine_does(weights, street):
    events = moved(street, 48, 36)
    predictor = rvtssm.load("street-tiny")
    predicted = predictor.predict(events, height=168, width=224, downsample=1, tiles="2x2", min_score=0.3)
    streamed = predictor.stream(168, 224, downsample=1, tiles="2x2", min_score=0.3)
    live = [result.detections for result in streamed.push(events, int(events.t[-1]) + 1)]
    assert predicted.summary.tiles == "2x2" and "tiles=2x2" in "".join(predicted.summary.lines())
    assert len(live) == 7 and len(predicted) == 8  # the last window of a file ends after its last event
    for mine, theirs, expected in zip(predicted, live, boxes_of(weights, events, SENSOR_HW, "2x2"), strict=False):
        np.testing.assert_allclose(mine.xyxy, expected.xyxy, atol=1e-2)
        np.testing.assert_allclose(theirs.xyxy, expected.xyxy, atol=1e-2)


def test_tiles_are_reduced_less_than_the_whole(weights):
    whole, tiled = (StreamDetector(weights, 720, 1280, tiles=tiles) for tiles in (None, "2x2"))
    assert tiled.downsample < whole.downsample
