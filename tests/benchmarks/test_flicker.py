"""Switches between found and missed, and gains over other weights, by hand."""

import numpy as np
import pytest

from benchmarks.transfer.scoring import gain, in_seconds, switches_per_second
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.records import DatasetSpec, Detections, Labels


def recording(scores: list[float], step_us: int = 50_000) -> ScoredRecording:
    """An object of class 1 that moves to the right beside one that is never found, with a score in each window."""
    count = len(scores)
    t_us = (np.arange(count, dtype=np.int64) + 1) * step_us
    left = 2.0 * np.arange(count)
    boxes = np.stack(
        [[left, left * 0, left * 0 + 20, left * 0 + 20], [left, left * 0 + 50, left * 0 + 20, left * 0 + 20]]
    )
    labels = Labels(
        boxes.transpose(2, 0, 1).reshape(-1, 4).astype(np.float32),
        np.ones(2 * count, np.int64),
        np.repeat(t_us, 2),
        np.repeat(np.arange(count), 2),
        np.full(2 * count, -1, np.int64),
    )
    found = [
        Detections(np.array([[x, 0, x + 20, 20]], np.float32), np.array([score], np.float32), np.array([1]), int(t))
        for x, score, t in zip(left.tolist(), scores, t_us, strict=True)
    ]
    return ScoredRecording("a", labels, found)


def test_switches_are_counted_per_second_of_an_object():
    assert switches_per_second([recording([0.9] * 21)], 1) == 0
    # two objects over one second: a switch at every window of one of them
    flickering = recording([0.9, 0.1] * 10 + [0.9])
    assert switches_per_second([flickering], 1) == pytest.approx(20 / 2)
    assert switches_per_second([flickering, recording([0.9] * 21)], 1) == pytest.approx(20 / 4)
    once = recording([0.2] * 10 + [0.8] * 11)
    assert switches_per_second([once], 1) == pytest.approx(1 / 2)
    assert switches_per_second([once], 0) is None


def test_gains_come_from_the_same_seconds_of_both_detections():
    """The other detector finds nothing in the last second, so that a replicate without it has no gain."""
    spec = DatasetSpec("two", 300, 300, ("one", "other"), skip_us=0)
    ours = recording([0.9] * 80)
    empty = [frame[:0] for frame in ours.detections[60:]]
    theirs = ours._replace(detections=[*ours.detections[:60], *empty])
    assert [part.name for part in in_seconds([ours])] == ["a 0", "a 1", "a 2", "a 3"]
    assert sum(len(part.labels) for part in in_seconds([ours])) == len(ours.labels)
    value, low, high = gain([ours], [theirs], spec)
    assert low == 0 < value < high
    assert gain([ours], [ours], spec) == [0, 0, 0]
    one_second = recording([0.9] * 20)
    assert gain([one_second], [one_second], spec) == []
