"""Which output is scored at a label: a three-frame example by hand, and laws over latencies and rules."""

import numpy as np
import pytest
from test_coco import SPEC, make_detections, make_labels

from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.latency import LabelSteps, newest, taken_steps
from rvtssm.evaluation.rates import at_labels

ENDS_US = np.array([600_000, 700_000, 800_000])
BOX_AT = {600_000: [0, 0, 50, 50], 700_000: [100, 0, 50, 50], 800_000: [200, 0, 50, 50]}


def streaming_ap(latency_us: float, when_late: str = "skip") -> float:
    """AP of a detector that finds every box where it was at the end of the window; an object jumps each frame."""
    steps, finished_us = taken_steps(ENDS_US, latency_us, when_late)
    labels = make_labels(list(BOX_AT.values()), ENDS_US)
    label_steps = LabelSteps(labels.t_us, newest(labels.t_us, finished_us))
    outputs = [make_detections([BOX_AT[int(ENDS_US[step])]], [0.9], ENDS_US[step]) for step in steps]
    return evaluate_detections([("a", labels, at_labels(label_steps, np.arange(len(steps)), outputs))], SPEC)["AP"]


@pytest.mark.parametrize("when_late", ["skip", "queue"])
def test_three_frames_by_hand(when_late):
    assert streaming_ap(0, when_late) == pytest.approx(1)
    # each output comes while the next frame is there, and the first label has none: the boxes are those of before
    assert streaming_ap(1, when_late) == streaming_ap(99_999, when_late) == streaming_ap(100_000, when_late) == 0
    assert streaming_ap(300_000, when_late) == 0


def test_an_object_that_stands_still_is_found_by_late_outputs_but_not_before_the_first():
    labels = make_labels([[0, 0, 50, 50]] * 3, ENDS_US)
    frames = {step: make_detections([[0, 0, 50, 50]], [0.9], ENDS_US[step]) for step in range(3)}
    for latency_us, num_found in ((0, 3), (1, 2), (100_000, 2), (100_001, 1), (200_000, 1), (200_001, 0)):
        steps, finished_us = taken_steps(ENDS_US, latency_us, "skip")
        label_steps = LabelSteps(labels.t_us, newest(labels.t_us, finished_us))
        found = at_labels(label_steps, np.arange(len(steps)), [frames[step] for step in steps])
        assert [frame.t_us for frame in found] == ENDS_US.tolist()
        assert sum(map(len, found)) == num_found
        recall = num_found / 3
        assert evaluate_detections([("a", labels, found)], SPEC)["AP"] == pytest.approx(recall, abs=0.01)


def test_a_late_detector_skips_to_the_newest_window_or_queues():
    ends_us = 10_000 * np.arange(1, 9)
    steps, finished_us = taken_steps(ends_us, 25_000, "skip")
    # the first takes 10 to 35 ms, when windows end at 20 and 30; it goes on with that of 30, until 60
    assert steps.tolist() == [0, 2, 5, 7] and finished_us.tolist() == [35_000, 60_000, 85_000, 110_000]
    steps, finished_us = taken_steps(ends_us, 25_000, "queue")
    assert steps.tolist() == list(range(8)) and finished_us.tolist() == (10_000 + 25_000 * np.arange(1, 9)).tolist()


@pytest.mark.parametrize("when_late", ["skip", "queue"])
@pytest.mark.parametrize("latency_us", [0, 9_999, 17_000, 250_000])
def test_no_output_is_known_before_its_window_has_ended_and_was_computed(latency_us, when_late):
    ends_us = np.sort(np.random.default_rng(0).choice(500_000, 40, replace=False))
    steps, finished_us = taken_steps(ends_us, latency_us, when_late)
    assert steps[0] == 0 and (np.diff(steps) > 0).all()
    begun_us = finished_us - latency_us
    assert (begun_us >= ends_us[steps]).all() and (np.diff(finished_us) >= latency_us).all()
    assert (begun_us[1:] >= finished_us[:-1]).all()
    if when_late == "queue" or latency_us == 0:
        assert steps.tolist() == list(range(40))
    if when_late == "skip":  # an output is late by two computations at most
        taken_age_us = finished_us - ends_us[steps]
        assert (taken_age_us <= 2 * latency_us).all()
    np.testing.assert_array_equal(newest(ends_us, taken_steps(ends_us, 0, when_late)[1]), np.arange(40))
