"""The study of pseudo-labels: which labels stay, what counts as a right one, and its table."""

import numpy as np
import pytest

from benchmarks import pseudo_labels
from benchmarks.pseudo_labels import STAGES, main, quality, thin_labels
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
    # at 50 ms one of two is found, and one too many; the uncertain one does not count; 100 ms is annotated; at 200 ms
    # there is nothing
    write(
        tmp_path / "made/train/a_bbox.npy",
        [50_010, 50_010, 100_000, 100_010, 150_010, 200_010],
        [2, 200, 0, 0, 0, 0],
        [0.9, 0.5, 0.0, 0.9, -0.9, 0.9],
    )
    assert quality(tmp_path / "raw", tmp_path / "made") == pytest.approx(
        {"made": 3, "precision": 1 / 3, "recall": 1 / 3}
    )


def test_an_interrupted_study_goes_on_with_the_same_words(tmp_path, monkeypatch, capsys):
    calls = []

    def interrupted(folder, share, stage, words):
        calls.append((share, stage, words))
        if len(calls) == 2:
            raise KeyboardInterrupt
        row = {"share": share, "stage": stage, "AP": 0.1, "AP50": 0.2, "interval": [0.0, 0.2]}
        return row | ({"made": 1, "precision": 0.5, "recall": 0.5} if stage == "pseudo" else {})

    monkeypatch.setattr(pseudo_labels, "run_stage", interrupted)
    monkeypatch.setattr(pseudo_labels, "generate", lambda config: None)
    words = ["--folder", str(tmp_path), "--json", str(tmp_path / "rows.json"), "--shares", "10", "--steps", "7"]
    with pytest.raises(KeyboardInterrupt):
        main([*words, "seed=3"])
    main([*words, "seed=3"])
    main([*words, "seed=3"])
    assert [call[:2] for call in calls] == [(10, STAGES[0]), (10, STAGES[1]), *((10, stage) for stage in STAGES[1:])]
    assert all(words == calls[0][2] for *_, words in calls) and {"seed=3", "training.steps=7"} < set(calls[0][2])
    with pytest.raises(SystemExit, match="name another file"):
        main([*words, "seed=4"])
    for share in ("40", "0"):
        with pytest.raises(SystemExit):
            main([*words, "--shares", share])
        assert f"100 is no multiple of {share}" in capsys.readouterr().err
