"""Matches per recording give the numbers of pycocotools, for any weights; intervals come from drawn recordings."""

import math

import numpy as np
import pytest
from test_coco import SPEC, make_labels, plain_coco, random_recording

from rvtssm.evaluation import coco
from rvtssm.evaluation.bootstrap import TRUSTED_RECORDINGS, resample
from rvtssm.evaluation.coco import METRICS, average_precisions, weighted_precisions
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.records import Detections


def some_recordings(rng, count=5, noise=8.0, digits=9):
    """Recordings of different lengths and quality. With few digits, detections have equal scores."""
    found = []
    for number in range(count):
        labels, frames = random_recording(
            rng, num_frames=int(rng.integers(1, 6)), noise=noise * (number + 1) / count, extra=int(rng.integers(0, 6))
        )
        frames = [Detections(f.xyxy, np.round(f.score, digits), f.class_id, f.t_us) for f in frames]
        found.append(ScoredRecording(str(number), labels, frames))
    return found


def pycocotools_numbers(recordings):
    plain = plain_coco(recordings)
    found = dict(zip(METRICS, plain.stats.tolist(), strict=False))
    of_class = plain.eval["precision"][:, :, :, 0, -1]
    found |= {f"AP/{name}": float(of_class[:, :, k].mean()) for k, name in enumerate(SPEC.class_names)}
    return {name: math.nan if value < 0 else value for name, value in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_matches_give_the_numbers_of_pycocotools_to_the_last_digit(seed):
    recordings = some_recordings(np.random.default_rng(seed), count=1 + seed % 4, digits=1 + seed)
    expected = pycocotools_numbers(recordings)
    np.testing.assert_equal(average_precisions(match_detections(recordings, SPEC), SPEC), expected)
    of_all_sizes = {name: value for name, value in expected.items() if "AP_" not in name}
    found = average_precisions(match_detections(recordings, SPEC, has_sizes=False), SPEC)
    np.testing.assert_equal(found, of_all_sizes)


@pytest.mark.parametrize("seed", range(2))
def test_a_weight_counts_a_recording_as_if_it_occurred_so_often(seed):
    rng = np.random.default_rng(seed)
    recordings = some_recordings(rng)
    weights = rng.multinomial(len(recordings), [1 / len(recordings)] * len(recordings), 5)
    found = weighted_precisions(match_detections(recordings, SPEC), SPEC, weights)
    for replicate, row in enumerate(weights):
        drawn = [recording for recording, count in zip(recordings, row, strict=True) for _ in range(count)]
        expected = pycocotools_numbers(drawn)
        ours = {name: values[replicate] for name, values in found.items()}
        assert ours == pytest.approx(expected, abs=1e-12, rel=0, nan_ok=True)
    assert len(np.unique(found["AP"])) > 1


def test_how_many_weightings_are_computed_at_once_changes_nothing(monkeypatch):
    recordings = some_recordings(np.random.default_rng(0))
    matches = match_detections(recordings, SPEC)
    whole = resample(matches, SPEC, 20).replicates
    monkeypatch.setattr(coco, "MOST_CELLS", 1)
    np.testing.assert_equal(resample(matches, SPEC, 20).replicates, whole)


def test_an_interval_holds_the_number_and_depends_on_the_seed_alone():
    matches = match_detections(some_recordings(np.random.default_rng(1), count=8), SPEC)
    found, again, other = (resample(matches, SPEC, 200, seed) for seed in (3, 3, 4))
    for name in ("AP", "AP50", "AP/car"):
        value, low, high = found.interval(name)
        assert low < value < high and value == found.metrics[name]
        assert found.interval(name) == again.interval(name) != other.interval(name)
    inside = (found.replicates["AP"] >= found.interval("AP").low) & (
        found.replicates["AP"] <= found.interval("AP").high
    )
    assert inside.mean() == pytest.approx(0.95, abs=0.006)


def test_a_paired_difference_is_narrower_than_two_intervals():
    rng = np.random.default_rng(2)
    recordings = some_recordings(rng, count=12, noise=12)
    worse = [
        ScoredRecording(name, labels, [Detections(f.xyxy + 1, f.score, f.class_id, f.t_us) for f in frames])
        for name, labels, frames in recordings
    ]
    good, bad = (resample(match_detections(each, SPEC), SPEC, 300) for each in (recordings, worse))
    value, low, high = good.minus(bad, "AP")
    assert value == good.metrics["AP"] - bad.metrics["AP"] and low < value < high
    alone = good.interval("AP")
    assert high - low < (alone.high - alone.low) / 2
    assert good.minus(good, "AP") == (0, 0, 0)
    others = resample(match_detections(recordings[1:], SPEC), SPEC, 300)
    assert (
        good.minus(others, "AP") is None and good.minus(resample(match_detections(worse, SPEC), SPEC, 9), "AP") is None
    )
    namesakes = some_recordings(np.random.default_rng(3), count=12, noise=12)
    assert good.minus(resample(match_detections(namesakes, SPEC), SPEC, 300), "AP") is None


def test_without_replicates_or_with_one_recording_there_is_no_interval():
    recordings = some_recordings(np.random.default_rng(0))
    none = resample(match_detections(recordings, SPEC), SPEC, 0)
    one = resample(match_detections(recordings[:1], SPEC), SPEC, 100)
    for found in (none, one):
        assert not found.has_intervals and found.metrics["AP"] > 0 and found.minus(found, "AP") is None
        assert found.sentence().startswith("none")
    assert resample([], SPEC, 100).metrics.keys() == none.metrics.keys()


def test_a_report_says_from_how_many_recordings_on_an_interval_is_trusted():
    few = resample(match_detections(some_recordings(np.random.default_rng(0)), SPEC), SPEC, 10)
    assert "10 replicates in which the 5 recordings" in few.sentence() and few.sentence().endswith("are too narrow")
    many = resample(match_detections(some_recordings(np.random.default_rng(0), TRUSTED_RECORDINGS), SPEC), SPEC, 10)
    assert many.sentence().endswith(f"trusted from {TRUSTED_RECORDINGS} recordings on")


def test_recordings_without_an_image_are_not_drawn():
    empty = ScoredRecording("empty", make_labels([], []), [])
    recordings = some_recordings(np.random.default_rng(0))
    assert resample(match_detections([*recordings, empty], SPEC), SPEC, 10).recordings == tuple("01234")
