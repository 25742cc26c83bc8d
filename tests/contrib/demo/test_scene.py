"""Laws of the traffic: who stands still stays the same picture, and boxes hold what is painted."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.contrib.demo.actors import CAR, PEDESTRIAN, Actor, Journey
from rvtssm.contrib.demo.camera import simulate_events
from rvtssm.contrib.demo.figures import build_car, build_pedestrian
from rvtssm.contrib.demo.painting import Figure
from rvtssm.contrib.demo.scene import MIN_VISIBLE, Scene, build_scene
from rvtssm.contrib.demo.simulation_config import CameraConfig, SceneConfig
from rvtssm.contrib.demo.street import View, build_street

VIEW = View(height=120, width=160, unit=1.0, horizon_px=45.0, camera_m=1.6)
MOVING_VIEW = replace(VIEW, swings=((15.0, 0.2, 0.3),), nods=((1.0, 1.5, 0.0),))
FIGURES: dict[str, Callable[[], Figure]] = {
    "car": lambda: build_car("right", 15.0, np.random.default_rng(1)),
    "car from the front": lambda: build_car("front", 30.0, np.random.default_rng(2)),
    "pedestrian": lambda: build_pedestrian(1, np.random.default_rng(3)),
    "pedestrian from the front": lambda: build_pedestrian(0, np.random.default_rng(4)),
}
QUIET = CameraConfig(background_rate_hz=0.0, hot_pixel_share=0.0)
paced = Journey(0.0, -3.0, 12.0, (4.0, 0.0)).paused(0.5, 0.6).paused(1.9, 0.3)


def scene_with(*actors: Actor, view: View = VIEW) -> Scene:
    return Scene(3_000_000, build_street(view, np.random.default_rng(0)), actors)


def actor(name: str, journey: Journey, view: View = VIEW) -> Actor:
    return Actor(CAR if name.startswith("car") else PEDESTRIAN, FIGURES[name](), journey, view)


def random_scene(seed: int, is_ego_moving: bool = False, height: int = 120, width: int = 160, seconds: float = 3.0):
    return build_scene(height, width, round(seconds * 1e6), SceneConfig(), np.random.default_rng(seed), is_ego_moving)


def labels(scene: Scene, step_us: int = 50_000, min_side_px: float = 6, min_diagonal_px: float = 12) -> np.ndarray:
    times = range(100_000, scene.duration_us + 1, step_us)
    return np.concatenate([scene.boxes(t, min_side_px, min_diagonal_px) for t in times])


def test_a_pause_lasts_as_long_as_asked_and_costs_half_of_braking_and_starting():
    grid = np.arange(0, 4_000_000, 1_000)
    still = np.array([paced.still_us(t) for t in grid])
    assert np.count_nonzero(still) == pytest.approx(900, abs=3)
    assert still.max() == pytest.approx(600_000, abs=1_000)
    assert paced.moved_s(4.0) == pytest.approx(4.0 - 0.9 - 2 * (0.25 + 0.3) / 2)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_stands_still_emits_nothing(name):
    scene = scene_with(actor(name, paced))
    blocks = list(simulate_events(scene.frames(), QUIET, np.random.default_rng(0)))
    t = np.concatenate([block.t for block in blocks])
    stop_us, go_us = (round(s * 1e6) for s in paced.pauses_s[0])
    settled_us = stop_us + 10_000  # the longest time between two frames
    assert np.count_nonzero((t >= settled_us) & (t <= go_us)) == 0
    assert np.count_nonzero(t < 500_000) > 200
    assert np.count_nonzero((t > go_us + 300_000) & (t < go_us + 500_000)) > 100


@pytest.mark.parametrize("name", FIGURES)
def test_time_since_the_last_motion_is_true(name):
    scene = scene_with(actor(name, paced))
    for t_us in range(100_000, 3_000_001, 50_000):
        (box,) = scene.boxes(t_us, 2, 2)
        since = t_us - int(box["still_us"])
        same = scene.boxes(since, 2, 2)[0]
        assert all(box[side] == same[side] for side in "xywh")
        earlier = scene.boxes(since - 60_000, 2, 2)[0]
        assert any(earlier[side] != same[side] for side in "xywh")


def test_nothing_is_still_under_a_moving_camera():
    scene = scene_with(actor("car", paced, MOVING_VIEW), view=MOVING_VIEW)
    assert any(paced.still_us(t) for t in range(0, 3_000_000, 50_000))
    found = labels(scene)
    assert len(found) and (found["still_us"] == 0).all()


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("px_per_m", [8.0, 14.3, 25.0])
def test_a_box_is_the_extent_of_what_is_painted(name, px_per_m):
    figure = FIGURES[name]()
    for gait_m in (0.0, 0.2, 0.45, 0.7):
        canvas = np.zeros((120, 160), np.float32)
        figure.paint(canvas, (80.3, 90.6), px_per_m, gait_m, is_silhouette=True)
        assert canvas.min() >= 0 and canvas.max() <= 1 + 1e-5
        rows, columns = (np.flatnonzero(canvas.max(axis=axis) > 0.4) for axis in (1, 0))
        left, bottom, right, top = np.array(figure.extent_m(gait_m)) * px_per_m
        painted = np.array((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        box = np.array((80.3 + left, 90.6 - top, 80.3 + right, 90.6 - bottom))
        np.testing.assert_allclose(painted, box, atol=1.3)


def test_boxes_lie_in_the_frame_and_are_large_enough():
    for seed in range(4):
        boxes = labels(random_scene(seed, is_ego_moving=seed == 3))
        assert len(boxes)
        assert (boxes["x"] >= 0).all() and (boxes["x"] + boxes["w"] <= 160 + 1e-3).all()
        assert (boxes["y"] >= 0).all() and (boxes["y"] + boxes["h"] <= 120 + 1e-3).all()
        assert np.minimum(boxes["w"], boxes["h"]).min() >= 6
        assert np.hypot(boxes["w"], boxes["h"]).min() >= 12


def test_who_enters_is_labelled_from_the_visible_share_on_and_clipped():
    car = actor("car", Journey(0.0, -9.0, 16.0, (6.0, 0.0)))
    scene = scene_with(car)
    length_px = car.figure.extent_m(0)[2] * 2 * 10
    for t_us in range(0, 3_000_000, 20_000):
        sighting = car.sighting(t_us * 1e-6)
        share = 0.0 if sighting is None else min(1.0, sighting.box_ltrb[2] / length_px)
        boxes = scene.boxes(t_us, 1, 1)
        if abs(share - MIN_VISIBLE) > 0.01 and (sighting is None or sighting.box_ltrb[2] < 160):
            assert len(boxes) == (share > MIN_VISIBLE)
            if len(boxes):
                assert boxes[0]["w"] == pytest.approx(share * length_px, abs=1e-3)


def test_who_is_hidden_is_not_labelled():
    standing = Journey(-1.0, 0.0, 14.0, (0.0, 0.0))
    hidden = actor("pedestrian", standing)
    curtain = actor("car from the front", replace(standing, depth_m=5.0))
    beside = actor("car from the front", replace(standing, depth_m=5.0, x_m=-1.9))
    assert scene_with(hidden).boxes(0, 2, 2)["class_id"].tolist() == [PEDESTRIAN]
    assert scene_with(hidden, curtain).boxes(0, 2, 2)["class_id"].tolist() == [CAR]
    alone, behind = scene_with(hidden).boxes(0, 2, 2), scene_with(hidden, beside).boxes(0, 2, 2)
    assert behind["class_id"].tolist() == [CAR, PEDESTRIAN]
    assert alone[0]["w"] == behind[1]["w"]


def test_the_same_generator_state_gives_the_same_scene_and_another_one_another():
    one, same, other = random_scene(7), random_scene(7), random_scene(8)
    image, of_same, of_other = (next(islice(scene.frames(), 100, None))[1] for scene in (one, same, other))
    np.testing.assert_array_equal(image, of_same)
    np.testing.assert_array_equal(labels(one), labels(same))
    assert abs(image - of_other).mean() > 0.01


def test_a_finer_sensor_sees_the_same_scene_larger():
    coarse = labels(random_scene(11))
    fine = labels(random_scene(11, height=240, width=320), min_side_px=12, min_diagonal_px=24)
    assert fine["track_id"].tolist() == coarse["track_id"].tolist()
    for side in "xywh":
        np.testing.assert_allclose(fine[side], 2 * coarse[side], atol=0.01)


@pytest.mark.parametrize("height, width", [(16, 16), (45, 80), (90, 300)])
def test_any_sensor_is_possible(height, width):
    scene = random_scene(2, is_ego_moving=True, height=height, width=width, seconds=0.3)
    (first_us, first), *_, (last_us, last) = scene.frames()
    assert (first_us, last_us) == (0, 300_000)
    assert first.shape == last.shape == (height, width) and first.dtype == np.float32
    assert np.isfinite(last).all() and last.min() >= 0 and last.max() <= 1.01


@settings(max_examples=6)
@given(seed=st.integers(0, 1000), is_ego_moving=st.booleans())
def test_nothing_jumps_between_two_frames(seed, is_ego_moving):
    scene = random_scene(seed, is_ego_moving, seconds=1.0)
    times = list(scene.frame_times_us())
    assert times[0] == 0 and times[-1] == 1_000_000
    assert np.diff(times).min() > 0 and np.diff(times).max() <= 10_000
    for before, after in pairwise(times):
        for who in scene.actors:
            one, two = who.sighting(before * 1e-6), who.sighting(after * 1e-6)
            if one and two and one.px_per_m < 35:
                (x, y), (x2, y2) = one.ground_px, two.ground_px
                assert max(abs(x - x2), abs(y - y2)) < 1.0


def test_a_street_is_peopled_as_asked():
    def actors(**changes) -> tuple[Actor, ...]:
        return build_scene(120, 160, 5_000_000, SceneConfig(**changes), np.random.default_rng(0), False).actors

    assert actors(min_actors=0, max_actors=0) == ()
    assert 0 < len(actors(min_actors=1, max_actors=1)) < len(actors(min_actors=9, max_actors=9))
    assert {who.class_id for who in actors(car_share=1.0)} == {CAR}
    assert {who.class_id for who in actors(car_share=0.0)} == {PEDESTRIAN}
    assert not any(who.journey.pauses_s for who in actors(stopping_share=0.0))
    assert any(who.journey.pauses_s for who in actors(stopping_share=1.0))


def test_a_long_recording_goes_on_as_it_began():
    scene = random_scene(3, seconds=60.0)
    counts = [len(scene.boxes(t, 6, 12)) for t in range(1_000_000, 60_000_000, 500_000)]
    early, late = np.mean(counts[:40]), np.mean(counts[-40:])
    assert 1 < early < 6 and 1 < late < 6
