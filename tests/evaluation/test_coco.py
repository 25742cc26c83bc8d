"""Laws of average precision, an oracle for ignored objects, and the recorded numbers of the official code."""

import contextlib
import io
import math
from dataclasses import replace

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from user_errors import raises

from rvtssm.boxes import ltwh_to_xyxy, xyxy_to_ltwh
from rvtssm.datasets import DATASETS
from rvtssm.evaluation import coco
from rvtssm.evaluation.coco import (
    AP_OF_SIZES,
    METRICS,
    TRUSTED_RECORDINGS,
    average_precisions,
    evaluate_detections,
    resample,
    weighted_precisions,
)
from rvtssm.evaluation.matching import SIZES, ScoredRecording, match_detections
from rvtssm.evaluation.protocol import (
    has_stood_still,
    is_scored,
    num_images_left_out,
    scored_detections,
    scored_labels,
    scoring_rules,
)
from rvtssm.records import DatasetSpec, Detections, Labels

SPEC = DATASETS["gen1"]


def make_labels(boxes_ltwh, t_us, class_id=None, still_us=None):
    n = len(t_us)
    return Labels(
        boxes_ltwh=np.asarray(boxes_ltwh, np.float32).reshape(n, 4),
        class_id=np.zeros(n, np.int64) if class_id is None else np.asarray(class_id, np.int64),
        t_us=np.asarray(t_us, np.int64),
        window_index=np.zeros(n, np.int64),
        still_us=np.full(n, -1) if still_us is None else np.asarray(still_us, np.int64),
    )


def make_detections(boxes_ltwh, score, t_us, class_id=None):
    n = len(score)
    return Detections(
        xyxy=ltwh_to_xyxy(np.asarray(boxes_ltwh, np.float32).reshape(n, 4)),
        score=np.asarray(score, np.float32),
        class_id=np.zeros(n, np.int64) if class_id is None else np.asarray(class_id, np.int64),
        t_us=int(t_us),
    )


def random_recording(rng, num_frames=6, per_frame=3, noise=4.0, extra=4):
    """Labels every 0.25 s from 0.75 s on, each found with some error, and false detections besides."""
    times = 750_000 + 250_000 * np.arange(num_frames)
    t_us = np.repeat(times, per_frame)
    n = len(t_us)
    truth = np.concatenate([rng.uniform(0, 180, (n, 2)), rng.uniform(25, 110, (n, 2))], axis=1).astype(np.float32)
    class_id = rng.integers(0, 2, n)
    frames = []
    for i, t in enumerate(times):
        at = slice(i * per_frame, (i + 1) * per_frame)
        lost = np.concatenate([rng.uniform(0, 180, (extra, 2)), rng.uniform(25, 110, (extra, 2))], axis=1)
        boxes = np.concatenate([truth[at] + rng.normal(0, noise, (per_frame, 4)), lost])
        classes = np.concatenate([class_id[at], rng.integers(0, 2, extra)])
        frames.append(make_detections(boxes, rng.random(per_frame + extra), t, classes))
    return make_labels(truth, t_us, class_id, still_us=rng.choice([0, 400_000], n)), frames


def annotations(image, before, ltwh, class_id, is_ignored, score):
    """Boxes of one image as pycocotools takes them, numbered after those before."""
    area = (ltwh[:, 2] * ltwh[:, 3]).tolist()
    rows = zip(ltwh.tolist(), area, (class_id + 1).tolist(), is_ignored.tolist(), score.tolist(), strict=True)
    names = "bbox", "area", "category_id", "is_ignored", "score"
    shared = {"image_id": image, "iscrowd": 0}
    return [{**dict(zip(names, row, strict=True)), **shared, "id": before + n} for n, row in enumerate(rows, 1)]


def evaluated(kind, recordings, spec):
    """An evaluation by pycocotools over all images of all recordings: labels, which are ignored, and detections."""
    images, truths, found = [], [], []
    for labels, is_ignored, frames in recordings:
        for frame in frames:
            images.append({"id": len(images) + 1})
            at = labels.t_us == frame.t_us
            ours = labels.boxes_ltwh[at], labels.class_id[at], is_ignored[at], np.ones(at.sum())
            truths += annotations(len(images), len(truths), *ours)
            theirs = xyxy_to_ltwh(frame.xyxy), frame.class_id, np.zeros(len(frame), bool), frame.score
            found += annotations(len(images), len(found), *theirs)
    with contextlib.redirect_stdout(io.StringIO()):
        sides = COCO(), COCO()
        for side, boxes in zip(sides, (truths, found), strict=True):
            categories = [{"id": k + 1} for k in range(spec.num_classes)]
            side.dataset = {"images": images, "annotations": boxes, "categories": categories}
            side.createIndex()
        done = kind(*sides, "bbox")
        done.evaluate()
    return done


def plain_coco(recordings):
    """A plain COCOeval over all images of all recordings, each as often as it is listed."""
    scored = [
        (labels, np.zeros(len(labels), bool), [scored_detections(frame, SPEC) for frame in detections])
        for _, labels, detections in recordings
    ]
    plain = evaluated(COCOeval, scored, SPEC)
    with contextlib.redirect_stdout(io.StringIO()):
        plain.accumulate()
        plain.summarize()
    return plain


class _IgnoringEval(COCOeval):
    """pycocotools with ignored objects that are not a crowd: they take one detection, and with the usual overlap."""

    def _prepare(self):
        super()._prepare()  # sets `ignore` from `iscrowd`
        for boxes in self._gts.values():
            for box in boxes:
                box["ignore"] = box["is_ignored"]


def matches_of_pycocotools(labels, is_ignored, frames, spec):
    """The matches of one recording by pycocotools, ordered by class, image and score: arrays by name."""
    matched = evaluated(_IgnoringEval, [(labels, is_ignored, frames)], spec)
    rows = np.array(matched.evalImgs, object).reshape(spec.num_classes, len(SIZES), len(frames))
    arrays = {"score": np.concatenate([row["dtScores"] for row in rows[:, 0].flat if row])}
    for name, key in (("is_hit", "dtMatches"), ("is_ignored", "dtIgnore")):
        by_size = [[row[key] for row in rows[:, size].flat if row] for size in range(len(SIZES))]
        arrays[name] = np.stack([np.concatenate(values, axis=1) for values in by_size]).astype(bool)
    num_truths = [[sum((row["gtIgnore"] == 0).sum() for row in k if row) for k in rows[:, s]] for s in range(4)]
    return arrays | {"num_truths": np.array(num_truths)}


def hard_recording(rng):
    """Equal scores, equal boxes, crowded and empty images, boxes that only touch, and objects on the edge of a size."""
    times = 750_000 + 250_000 * np.arange(6)
    num_truths, num_lost = rng.choice([0, 1, 7, 30], 6), rng.choice([0, 5, 120], 6)

    def boxes(count):
        corners, sides = 16 * rng.integers(0, 12, (count, 2)), rng.choice([16, 32, 48, 96, 97], (count, 2))
        return np.concatenate([corners, sides], axis=1).astype(np.float32)

    t_us, frames = np.repeat(times, num_truths), []
    labels = make_labels(boxes(len(t_us)), t_us, rng.integers(0, 2, len(t_us)))
    for t, lost in zip(times, num_lost, strict=True):
        near = labels.boxes_ltwh[t_us == t] + rng.choice([0, 0, 8], (np.count_nonzero(t_us == t), 4))
        ltwh = np.concatenate([near, boxes(lost)])
        frames.append(make_detections(ltwh, rng.integers(0, 5, len(ltwh)) / 5, t, rng.integers(0, 2, len(ltwh))))
    return labels, frames


@pytest.mark.parametrize("seed", range(8))
def test_matches_equal_those_of_pycocotools_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    labels, frames = hard_recording(rng)
    is_ignored, spec = rng.random(len(labels)) < 0.2, replace(SPEC, scores_empty_images=True)
    labels = replace(labels, empty_us=np.setdiff1d([frame.t_us for frame in frames], labels.t_us))
    (ours,) = match_detections([("a", labels, frames)], spec, only={"a": ~is_ignored}, is_filtered=False)
    for name, expected in matches_of_pycocotools(labels, is_ignored, frames, spec).items():
        np.testing.assert_array_equal(getattr(ours, name), expected, err_msg=name)


def frames_of(boxes_ltwh, score, t_us, class_id):
    """Detections of several times, those of each time together."""
    together = [(t, t_us == t) for t in np.unique(t_us)]
    return [make_detections(boxes_ltwh[at], score[at], t, class_id[at]) for t, at in together]


def perfect(labels):
    return frames_of(labels.boxes_ltwh, np.full(len(labels), 0.9), labels.t_us, labels.class_id)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_perfect_detections_score_one_in_every_metric(rng):
    labels, _ = random_recording(rng, per_frame=5)
    metrics = evaluate_detections([("a", labels, perfect(labels))], SPEC)
    assert set(metrics) == {*METRICS, "AP/car", "AP/pedestrian"}
    assert all(value == pytest.approx(1) for value in metrics.values() if not math.isnan(value))
    assert metrics["AP/car"] == pytest.approx(1)


def test_no_detections_score_zero_and_sizes_without_truth_are_nan():
    labels = make_labels([[10, 10, 30, 30]], [1_000_000])  # 900 px: small
    metrics = evaluate_detections([("a", labels, [make_detections([], [], 1_000_000)])], SPEC)
    assert metrics["AP"] == metrics["AP50"] == metrics["AP_small"] == metrics["AP/car"] == 0
    assert all(math.isnan(metrics[name]) for name in ("AP_medium", "AP_large", "AP/pedestrian"))


def test_no_ground_truth_is_nan_not_an_error():
    metrics = evaluate_detections([("a", make_labels([], []), [make_detections([[0, 0, 50, 50]], [0.9], 10**6)])], SPEC)
    assert all(math.isnan(value) for value in metrics.values())


def test_recordings_are_scored_together_and_duplicates_once(rng):
    one, two = (("one", *random_recording(rng)), ("two", *random_recording(rng)))
    together = evaluate_detections([one, two], SPEC)
    assert together == evaluate_detections([one, two, one], SPEC)
    assert together == pytest.approx(evaluate_detections([two, one], SPEC), nan_ok=True)
    separate = [evaluate_detections([recording], SPEC)["AP"] for recording in (one, two)]
    assert together["AP"] != pytest.approx(np.mean(separate), abs=1e-4)  # ranks over all boxes, not a mean of means


def test_shifting_time_by_a_recording_changes_nothing_but_the_first_half_second(rng):
    labels, frames = random_recording(rng, num_frames=4)
    early = make_labels([[0, 0, 50, 50]], [500_000])
    false_early = [make_detections([[100, 100, 60, 60]], [1.0], 500_000)]
    whole = make_labels(
        np.concatenate([early.boxes_ltwh, labels.boxes_ltwh]),
        np.concatenate([early.t_us, labels.t_us]),
        np.concatenate([early.class_id, labels.class_id]),
    )
    assert evaluate_detections([("a", whole, false_early + frames)], SPEC) == evaluate_detections(
        [("a", labels, frames)], SPEC
    )


def test_a_false_box_on_an_empty_image_costs_precision_unless_the_protocol_drops_such_images():
    labels = replace(make_labels([[10, 10, 40, 40]], [1_000_000]), empty_us=np.array([400_000, 1_250_000]))
    found = make_detections([[10, 10, 40, 40]], [0.5], 1_000_000)
    false = [make_detections([[90, 90, 40, 40]], [0.9], t_us) for t_us in (400_000, 1_250_000)]
    recording = "a", labels, [*false, found]  # the order of frames does not matter
    assert evaluate_detections([recording], SPEC)["AP50"] == pytest.approx(1)
    custom = replace(SPEC, scores_empty_images=True)  # the first half second is not scored
    assert evaluate_detections([recording], custom)["AP50"] == pytest.approx(0.5)
    assert num_images_left_out([labels], SPEC) == 1 and num_images_left_out([labels], custom) == 0


def test_an_image_whose_boxes_are_all_too_small_is_left_out_or_empty():
    labels = make_labels([[10, 10, 40, 40], [10, 10, 5, 40]], [1_000_000, 1_250_000])
    frames = [
        make_detections([[10, 10, 40, 40]], [0.5], 1_000_000),
        make_detections([[90, 90, 40, 40]], [1], 1_250_000),
    ]
    assert evaluate_detections([("a", labels, frames)], SPEC)["AP50"] == pytest.approx(1)
    custom = replace(SPEC, scores_empty_images=True)
    assert evaluate_detections([("a", labels, frames)], custom)["AP50"] == pytest.approx(0.5)
    assert num_images_left_out([labels], SPEC) == 1


def test_misaligned_detections_are_an_error_not_a_zero():
    labels = make_labels([[10, 10, 40, 40]], [1_000_000])
    off = [make_detections([[10, 10, 40, 40]], [0.5], 1_000_001)]
    with raises("detections.missing"):
        evaluate_detections([("drive", labels, off)], SPEC)
    assert evaluate_detections([("drive", labels, off)], SPEC, time_tolerance_us=1)["AP"] == pytest.approx(1)
    with raises("labels.unsorted"):
        evaluate_detections([("drive", make_labels([[1, 1, 40, 40]] * 2, [2_000_000, 1_000_000]), off)], SPEC)


def test_scoring_limits_are_inclusive_and_shrink_with_the_frame():
    wh = np.array([[10, 29], [9.9, 80], [21, 21.5], [24, 18], [24, 17.9], [80, 80]], np.float32)
    boxes = np.concatenate([np.zeros_like(wh), wh], axis=1)
    t_us = np.array([500_001] * 5 + [500_000])
    expected = [True, False, True, True, False, False]  # 10 x 29 has a diagonal of 30.7, 24 x 18 one of 30
    assert is_scored(boxes, t_us, SPEC).tolist() == expected
    halved = DatasetSpec("onempx", 720, 1280, ("car",), 100_000, 20, 60, 5, 0, downsample=2)
    assert is_scored(boxes, t_us, halved).tolist() == expected
    labels = make_labels(boxes, t_us)
    assert len(scored_labels(labels, SPEC)) == 3
    assert "0.5 s" in scoring_rules(halved) and "10 px" in scoring_rules(halved) and "30 px" in scoring_rules(halved)
    assert "the best 100 detections of each class" in scoring_rules(halved)


def test_unknown_stillness_is_not_still():
    labels = make_labels([[0, 0, 40, 40]] * 4, [10**6] * 4, still_us=[-1, 0, 299_999, 300_000])
    assert has_stood_still(labels).tolist() == [False, False, False, True]


# Our names in the order in which pycocotools has the numbers, and their names in the golden data.
OFFICIAL_NAMES = {
    "AP": "AP",
    "AP50": "AP_50",
    "AP75": "AP_75",
    "AP_small": "AP_S",
    "AP_medium": "AP_M",
    "AP_large": "AP_L",
}


@pytest.mark.parametrize("is_filtered", [True, False], ids=["filtered", "unfiltered"])
@pytest.mark.parametrize("name", ["gen1", "gen4"])
def test_ap_equals_the_official_evaluation(golden_dir, name, is_filtered):
    arrays = np.load(golden_dir / "evaluation.npz")
    num_recordings = sum(key.startswith(f"{name}/gt") for key in arrays)
    truths = [arrays[f"{name}/gt{i}"] for i in range(num_recordings)]
    found = [arrays[f"{name}/dt{i}"] for i in range(num_recordings)]
    classes = 1 + max(int(boxes["class_id"].max()) for boxes in [*truths, *found] if len(boxes))
    downsample = 2 if name == "gen4" else 1
    spec = replace(
        SPEC,  # of which neither the size nor the names of classes enter the numbers
        class_names=tuple(f"class{i}" for i in range(max(classes, 3 if name == "gen4" else 2))),
        min_side_px=10 * downsample,
        min_diagonal_px=30 * downsample,
        downsample=downsample,
    )
    recordings = [
        (
            str(i),
            make_labels(ltwh(truth), truth["t"], truth["class_id"]),
            frames_of(ltwh(dt), dt["class_confidence"], dt["t"], dt["class_id"]),
        )
        for i, (truth, dt) in enumerate(zip(truths, found, strict=True))
    ]
    metrics = evaluate_detections(recordings, spec, is_filtered=is_filtered, time_tolerance_us=50_000)
    for ours, theirs in OFFICIAL_NAMES.items():
        expected = float(arrays[f"{name}/{'filtered' if is_filtered else 'unfiltered'}/{theirs}"])
        expected = math.nan if expected < 0 else expected
        assert metrics[ours] == pytest.approx(expected, abs=1e-6, nan_ok=True), ours


def ltwh(boxes):
    return np.stack([boxes[key] for key in "xywh"], axis=-1)


def test_of_a_class_a_frame_has_a_hundred_detections():
    """As in COCO and the toolbox of the datasets: of 101 objects, all of them found, one counts as missed."""
    boxes = [[20 * (i % 15), 12 * (i // 15), 19, 11] for i in range(101)]
    big = replace(SPEC, min_side_px=1, min_diagonal_px=1)
    labels = make_labels(boxes, [1_000_000] * 101)
    found = make_detections(boxes, np.linspace(0.9, 0.4, 101), 1_000_000)
    assert evaluate_detections([("a", labels, [found])], big)["AP"] == pytest.approx(100 / 101)


# intervals


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
    found = dict(zip(OFFICIAL_NAMES, plain.stats.tolist(), strict=False))
    of_class = plain.eval["precision"][:, :, :, 0, -1]
    found |= {f"AP/{name}": float(of_class[:, :, k].mean()) for k, name in enumerate(SPEC.class_names)}
    return {name: math.nan if value < 0 else value for name, value in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_matches_give_the_numbers_of_pycocotools_to_the_last_digit(seed):
    recordings = some_recordings(np.random.default_rng(seed), count=1 + seed % 4, digits=1 + seed)
    expected = pycocotools_numbers(recordings)
    found = average_precisions(match_detections(recordings, SPEC), SPEC)
    np.testing.assert_equal({name: found[name] for name in expected}, expected)
    of_all_sizes = average_precisions(match_detections(recordings, SPEC, has_sizes=False), SPEC)
    np.testing.assert_equal(of_all_sizes, {name: found[name] for name in found if name not in AP_OF_SIZES})


@pytest.mark.parametrize("seed", range(2))
def test_a_weight_counts_a_recording_as_if_it_occurred_so_often(seed):
    rng = np.random.default_rng(seed)
    recordings = some_recordings(rng)
    weights = rng.multinomial(len(recordings), [1 / len(recordings)] * len(recordings), 5)
    found = weighted_precisions(match_detections(recordings, SPEC), SPEC, weights)
    for replicate, row in enumerate(weights):
        drawn = [recording for recording, count in zip(recordings, row, strict=True) for _ in range(count)]
        expected = pycocotools_numbers(drawn)
        ours = {name: found[name][replicate] for name in expected}
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
    fewer_draws = resample(match_detections(worse, SPEC), SPEC, 9)
    assert good.minus(others, "AP") is None and good.minus(fewer_draws, "AP") is None
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
