"""Laws of the event camera: what fires when is a formula of the log intensity."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.simulation_config import CAMERAS, CameraConfig
from rvtssm.readers.recording import join_events
from rvtssm.records import Events

QUIET = {"threshold_mismatch": 0.0, "background_rate_hz": 0.0, "hot_pixel_share": 0.0, "refractory_us": 0}


def camera(**changes) -> CameraConfig:
    return CameraConfig(**{**QUIET, **changes})


def events_of(frames, config: CameraConfig, seed: int = 0) -> Events:
    return join_events(list(simulate_events(iter(frames), config, np.random.default_rng(seed))))


def intensity(log_intensity, config: CameraConfig) -> np.ndarray:
    """The image that a camera sees at this logarithm."""
    return np.exp(np.asarray(log_intensity, np.float64)) - config.dark_intensity


def crossings(t_us, logs, threshold: float, slack: float = 0.0) -> list[tuple[float, int]]:
    """The definition, for one pixel: (time, polarity) of each threshold that the piecewise linear signal crosses.

    With slack, the signal has to go that much beyond a threshold.
    """
    level, found = logs[0], []
    for t0, t1, before, after in zip(t_us, t_us[1:], logs, logs[1:], strict=False):
        sign = np.sign(after - before)
        while sign and (after - level) * sign >= threshold + slack:
            level += sign * threshold
            found.append((t0 + (level - before) / (after - before) * (t1 - t0), int(sign > 0)))
    return found


def noise(seconds: float, **changes) -> Events:
    dark = np.full((60, 80), 0.5)
    return events_of([(0, dark), (round(seconds * 1e6), dark)], camera(**changes), seed=3)


@settings(max_examples=40)
@given(
    logs=st.lists(st.floats(-3.0, -0.1), min_size=2, max_size=12),
    threshold=st.floats(0.1, 0.5),
    steps=st.lists(st.integers(100, 20_000), min_size=11, max_size=11),
)
def test_any_signal_matches_the_definition(logs, threshold, steps):
    config = camera(threshold=threshold)
    t_us = [0, *np.cumsum(steps)][: len(logs)]
    events = events_of([(int(t), intensity([[v]], config)) for t, v in zip(t_us, logs, strict=True)], config)
    # float32 may decide otherwise where the signal only just reaches a threshold or just fails to
    low, high = (crossings(t_us, logs, threshold, slack) for slack in (1e-4, -1e-4))
    is_clear = [p for _, p in low] == [p for _, p in high]
    if is_clear and np.allclose([t for t, _ in low], [t for t, _ in high], rtol=0, atol=20):
        expected = crossings(t_us, logs, threshold)
        assert events.p.tolist() == [p for _, p in expected]
        np.testing.assert_allclose(events.t, [t for t, _ in expected], atol=20)


def test_one_frame_gives_no_events():
    assert list(simulate_events([(0, np.ones((4, 4)))], CameraConfig(), np.random.default_rng(0))) == []


def flicker():
    rng = np.random.default_rng(0)
    return [(i * 9_000, rng.uniform(0, 1, (24, 32))) for i in range(60)]


@pytest.mark.parametrize("refractory_us", [1, 700, 5_000])
def test_no_pixel_fires_twice_within_the_refractory_time(refractory_us):
    config = CameraConfig(refractory_us=refractory_us, background_rate_hz=20, hot_pixel_share=0.02)
    events = events_of(flicker(), config)
    order = np.lexsort((events.t, events.x, events.y))
    same_pixel = (np.diff(events.x[order].astype(int)) == 0) & (np.diff(events.y[order].astype(int)) == 0)
    assert same_pixel.any()
    assert np.diff(events.t[order])[same_pixel].min() >= refractory_us
    assert len(events) < len(events_of(flicker(), replace(config, refractory_us=0)))


@pytest.mark.parametrize(("dark_intensity", "count"), [(0.02, 39), (0.5, 10)])
def test_a_light_in_the_dark_is_worth_less_where_full_darkness_is_brighter(dark_intensity, count):
    config = camera(threshold=0.1, dark_intensity=dark_intensity)
    events = events_of([(0, np.zeros((4, 4))), (10_000, np.ones((4, 4)))], config)
    assert len(events) == 16 * count == 16 * int(np.log(1 / dark_intensity + 1) / 0.1)


def test_background_noise_has_its_rate_in_both_polarities_and_all_over():
    events = noise(20.0, background_rate_hz=0.5)
    expected = 0.5 * 20 * 60 * 80
    assert abs(len(events) - expected) < 5 * expected**0.5
    assert abs(events.p.mean() - 0.5) < 5 * 0.5 / expected**0.5
    quarters = np.histogram2d(events.y, events.x, bins=2)[0] / expected
    np.testing.assert_allclose(quarters, 0.25, atol=0.01)


def test_few_hot_pixels_make_most_of_the_noise_of_theirs():
    counts = np.zeros((60, 80), int)
    events = noise(10.0, background_rate_hz=0.1, hot_pixel_share=0.004, hot_pixel_rate_hz=60)
    np.add.at(counts, (events.y, events.x), 1)
    hot = counts > 200
    assert 5 <= hot.sum() <= 40  # 19 expected
    np.testing.assert_allclose(counts[hot].mean(), 600, rtol=0.1)
    assert counts[~hot].max() < 12


def test_thresholds_differ_from_pixel_to_pixel_as_much_as_asked():
    config = camera(threshold=0.1, threshold_mismatch=0.1)
    up = [(0, intensity(np.full((60, 80), -3.0), config)), (1_000_000, intensity(np.full((60, 80), -0.1), config))]
    events = events_of(up, config)
    counts = np.zeros((60, 80))
    np.add.at(counts, (events.y, events.x), 1)
    thresholds = 2.9 / (counts + 0.5)
    np.testing.assert_allclose(thresholds.mean(), 0.1, rtol=0.02)
    np.testing.assert_allclose(thresholds.std() / 0.1, 0.1, rtol=0.1)
    same = np.zeros((60, 80))
    np.add.at(same, ((e := events_of(up, camera(threshold=0.1))).y, e.x), 1)
    assert (same == same[0, 0]).all()


def test_frames_that_cannot_be_used_are_refused():
    dark = np.zeros((4, 4))
    with raises("setting.missing"):
        events_of([], camera())
    with raises("setting.form"):
        events_of([(5, dark), (5, dark)], camera())


def step(contrast: float, config: CameraConfig, light: float = 0.5, step_us: int = 50, seconds: float = 0.02) -> Events:
    """What pixels send whose light becomes brighter by `contrast` just after time 0, in frames `step_us` apart."""
    before, after = np.full((4, 5), light), np.full((4, 5), (light + config.dark_intensity) * np.exp(contrast))
    frames = [(0, before), *((t, after - config.dark_intensity) for t in range(1, round(seconds * 1e6), step_us))]
    return events_of(frames, config)


def slope(config: CameraConfig, change: float, seconds: float = 1.0) -> Events:
    """What pixels send whose logarithm rises evenly by `change`."""
    times = np.linspace(0, 1, 101)
    frames = [(int(seconds * 1e6 * a), intensity(np.full((40, 50), -2.0 + change * a), config)) for a in times]
    return events_of(frames, config)


@pytest.mark.parametrize("light", [0.05, 0.4])
def test_a_low_pass_answers_sooner_to_more_contrast_and_to_more_light(light):
    config = camera(cutoff_hz=200.0, threshold=0.2)
    for contrast in (0.3, 0.6, 1.5):
        first_us = step(contrast, config, light).t.min()
        bandwidth = 2 * np.pi * 200 * np.exp(contrast) * (light + 0.02) / 1.02  # after the step there is more light
        assert first_us == pytest.approx(-1e6 * np.log(1 - 0.2 / contrast) / bandwidth, abs=60)


def test_leak_events_are_brighter_and_come_at_their_rate():
    events = noise(20.0, leak_rate_hz=0.5, leak_mismatch=0.0)
    assert (events.p == 1).all()
    assert len(events) // (60 * 80) in (9, 10)  # the tenth comes at the end, a rounding away
    spread = noise(20.0, leak_rate_hz=0.5, leak_mismatch=0.5)
    counts = np.bincount(spread.y * 80 + spread.x, minlength=60 * 80)
    assert np.log(counts[counts > 0] + 0.5).std() == pytest.approx(0.5, abs=0.1)


def test_shot_noise_falls_to_a_quarter_from_darkness_to_white():
    counts = {}
    for light in (0.0, 0.5, 1.0):
        picture = np.full((60, 80), light)
        counts[light] = len(events_of([(0, picture), (5_000_000, picture)], camera(shot_rate_hz=2.0)))
    assert counts[0.0] == pytest.approx(60 * 80 * 5 * 2, rel=0.05)
    assert counts[0.5] / counts[0.0] == pytest.approx(0.625, rel=0.05)
    assert counts[1.0] / counts[0.0] == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_unequal_thresholds_make_more_events_of_one_polarity(ratio):
    config = camera(threshold=0.1, on_to_off=ratio)
    brighter, darker = (len(slope(config, change)) / 2000 for change in (1.9, -1.9))
    assert brighter == pytest.approx(19 / ratio**0.5, abs=1)
    assert darker == pytest.approx(19 * ratio**0.5, abs=1)


def test_thresholds_that_differ_from_event_to_event_scatter_the_times():
    even, noisy = (slope(camera(threshold=0.1, threshold_noise=sigma), 1.95) for sigma in (0.0, 0.2))
    assert len(noisy) == pytest.approx(len(even), rel=0.05)
    gaps = np.concatenate([np.diff(noisy.t[(noisy.x == x) & (noisy.y == 3)]) for x in range(50)])
    assert gaps.std() / gaps.mean() == pytest.approx(0.2, abs=0.03)


def test_dead_pixels_are_silent():
    config = camera(dead_pixel_share=0.2, threshold=0.1)
    assert len(np.unique(slope(config, 1.0).x + 50 * slope(config, 1.0).y.astype(int))) == pytest.approx(1600, rel=0.1)


def test_latency_delays_and_scatters():
    times = slope(camera(threshold=0.1), 0.55).t
    late = slope(camera(threshold=0.1, latency_us=3_000.0), 0.55).t
    np.testing.assert_array_equal(late, times + 3_000)
    jitter = slope(camera(threshold=0.1, latency_us=3_000.0, latency_jitter_us=500.0), 0.55)
    delays = np.concatenate([np.sort(jitter.t[(jitter.x == x)]) for x in range(50)]) - np.tile(np.sort(times[::50]), 50)
    assert delays.mean() == pytest.approx(3_000, abs=30) and delays.std() == pytest.approx(500, abs=30)
    assert np.diff(jitter.t).min() >= 0


def test_rows_are_read_in_turn():
    scattered = {"threshold": 0.1, "threshold_noise": 0.2}
    before, events = slope(camera(**scattered), 1.0), slope(camera(**scattered, readout_us=4_000), 1.0)
    turn = events.y.astype(int) * 4_000 // 40
    assert ((events.t - turn) % 4_000 == 0).all()
    kept = len(events)  # what is read after the last frame is lost
    waits = np.sort(events.t) - np.sort(before.t)[:kept]
    assert len(before) * 0.99 <= kept and waits.min() >= -1 and waits.max() <= 4_001


def test_a_limit_drops_what_is_above_it_and_only_that():
    burst = slope(camera(threshold=0.1), 1.95, seconds=0.1)
    limited = slope(camera(threshold=0.1, max_rate_hz=100.0), 1.95, seconds=0.1)
    most = 100.0 * 2000 / 1000
    assert np.bincount(burst.t // 1000).max() > 5 * most
    assert np.bincount(limited.t // 1000).max() <= most
    assert len(np.unique(limited.y)) == 40
    free = slope(camera(threshold=0.1, max_rate_hz=1e6), 1.95, seconds=0.1)
    np.testing.assert_array_equal(free.t, burst.t)


@pytest.mark.parametrize("name", CAMERAS)
def test_every_camera_gives_sorted_events_inside_the_sensor_and_the_time_and_always_the_same(name):
    drawn = drawn_camera(CAMERAS[name], np.random.default_rng(1))
    events, again = events_of(flicker(), drawn), events_of(flicker(), drawn)
    assert len(events) > 1000 and np.diff(events.t).min() >= 0
    assert events.t[0] >= 0 and events.t[-1] <= 59 * 9_000 and events.x.max() < 32 and events.y.max() < 24
    for column in ("t", "x", "y", "p"):
        np.testing.assert_array_equal(getattr(events, column), getattr(again, column))


def test_properties_are_drawn_per_recording_within_their_spread():
    center = CAMERAS["any"]
    assert drawn_camera(CameraConfig(), np.random.default_rng(0)) == CameraConfig()
    drawn = [drawn_camera(center, np.random.default_rng(seed)) for seed in range(200)]
    assert drawn[0] == drawn_camera(center, np.random.default_rng(0)) != drawn[1]
    for name in ("shot_rate_hz", "cutoff_hz", "latency_us"):
        values = np.array([getattr(camera, name) for camera in drawn]) / getattr(center, name)
        assert 1 / 2.7 <= values.min() < 0.45 and 2.2 < values.max() <= 2.7
    thresholds = [camera.threshold for camera in drawn]
    assert 0.05 <= min(thresholds) < 0.07 and 0.3 < max(thresholds) <= 0.4
    hot = [drawn_camera(CameraConfig(hot_pixel_share=0.9, spread=2), np.random.default_rng(seed)) for seed in range(20)]
    assert max(camera.hot_pixel_share for camera in hot) == 1  # a share of the pixels
