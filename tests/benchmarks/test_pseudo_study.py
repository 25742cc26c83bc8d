"""The study of pseudo-labels: which labels stay, what counts as a right one, and its table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pseudo_labels import quality, table, thin_labels
from rvtssm.events.labels import BOX_DTYPE, read_boxes, write_boxes


def write(path, times_us, lefts, scores=0.0, class_id=0):
    boxes = np.zeros(len(times_us), BOX_DTYPE)
    boxes["t"], boxes["x"], boxes["w"], boxes["h"] = times_us, lefts, 20, 20
    boxes["pseudo_score"], boxes["class_id"] = scores, class_id
    path.parent.mkdir(parents=True, exist_ok=True)
    write_boxes(path, boxes)


@pytest.mark.parametrize(("share", "num_kept"), [(2, [2, 2]), (10, [10, 10])])
def test_a_share_of_the_label_times_stays_and_starts_elsewhere_in_each_recording(tmp_path, share, num_kept):
    times_us = 50_000 * np.arange(100).repeat(2)  # two boxes at a time
    for name in ("train/a", "train/b", "val/c"):
        write(tmp_path / f"raw/{name}_bbox.npy", times_us, 0)
        (tmp_path / f"raw/{name}_td.dat").touch()
    thin_labels(tmp_path / "raw", tmp_path / "few", share)
    thin_labels(tmp_path / "raw", tmp_path / "few", share)  # again, as after an interruption
    kept = [np.unique(read_boxes(tmp_path / f"few/train/{name}_bbox.npy")["t"]) for name in "ab"]
    assert [len(times) for times in kept] == num_kept and not set(kept[0]) & set(kept[1])
    assert len(read_boxes(tmp_path / "few/val/c_bbox.npy")) == 200 and (tmp_path / "few/train/a_td.dat").is_symlink()


def test_precision_and_recall_by_hand(tmp_path):
    write(tmp_path / "raw/train/a_bbox.npy", [50_000, 50_000, 100_000, 150_000], [0, 100, 0, 0])
    # at 50 ms one of two is found, and one too many; the uncertain one does not count; 100 ms is annotated
    write(
        tmp_path / "made/train/a_bbox.npy",
        [50_010, 50_010, 100_000, 150_010],
        [2, 200, 0, 0],
        [0.9, 0.5, 0.0, -0.9],
    )
    assert quality(tmp_path / "raw", tmp_path / "made") == {"made": 2, "precision": 0.5, "recall": pytest.approx(1 / 3)}


def test_the_table_has_a_row_per_share_and_a_dash_for_what_is_missing():
    row = {"share": 2.0, "AP": 0.1, "AP50": 0.2, "interval": [0.05, 0.15]}
    rows = [{**row, "stage": "annotated"}, {**row, "stage": "pseudo", "made": 7, "precision": 0.5, "recall": 0.25}]
    *_, line = table(rows)
    assert line == "| 2 % | 10.0 [5.0, 15.0] | 10.0 [5.0, 15.0] | – | 20.0, 20.0 | 7 | 50.0 | 25.0 |"
