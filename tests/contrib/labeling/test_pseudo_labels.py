"""Labels of a detector: by hand, where they stand, and as a tree that goes on after an interruption."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from live_examples import SMALL
from user_errors import raises

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.cli import main as cli
from rvtssm.contrib.labeling import label as verb
from rvtssm.contrib.labeling import pseudo_labels
from rvtssm.contrib.labeling.label_config import LabelConfig
from rvtssm.contrib.labeling.pseudo_labels import ReversedRecording, agreed_boxes, find_pseudo_boxes, label_every
from rvtssm.datasets import DATASETS, DatasetConfig, PreprocessConfig
from rvtssm.datasets.custom import read_spec
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.tree import find_recordings
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.labels import BOX_DTYPE, annotated, read_boxes, write_boxes
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import join_events
from rvtssm.records import Detections, Events, Windows

SPEC = DATASETS["synthetic"]
CONFIG = LabelConfig(min_score=0.4, min_iou=0.5, min_track_ms=100)


def found(*rows):
    """Detections of rows (left, score, class, track), boxes of 20 x 20 pixels."""
    ltwh = np.array([[row[0], 10, 20, 20] for row in rows], np.float32).reshape(-1, 4)
    score, class_id, track = (
        np.array([row[i] for row in rows], k) for i, k in ((1, np.float32), (2, np.int64), (3, np.int64))
    )
    return Detections(ltwh_to_xyxy(ltwh), score, class_id, 90, track)


def test_trusted_is_what_both_directions_find_for_long_enough_by_hand():
    forward = found((10, 0.9, 0, 1), (50, 0.5, 1, 2), (90, 0.8, 0, 3), (130, 0.7, 0, 4), (170, 0.6, 0, 0))
    backward = found((14, 0.7, 0, 9), (50, 0.2, 1, 8), (90, 0.9, 1, 7), (170, 0.6, 0, 6), (210, 0.3, 1, 5))
    seconds = {0: 0.0, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5}, {5: 0.5, 6: 0.5, 7: 0.5, 8: 0.5, 9: 0.05}
    boxes = agreed_boxes(forward, backward, seconds, np.array([3, 7]), CONFIG)
    rows = {(float(box["x"]), int(box["class_id"])): round(float(box["pseudo_score"]), 4) for box in boxes}
    assert rows == {
        (12, 3): 0.8,  # the mean of both, with the longer of their tracks
        (50, 7): -0.35,  # a mean below min_score
        (90, 3): -0.8,  # of another class backwards
        (90, 7): -0.9,
        (130, 3): -0.7,  # only forwards
        (170, 3): 0.6,  # the first box of a track forwards, within one backwards
        (210, 7): -0.3,  # only backwards
    }
    assert (boxes["t"] == 90).all() and (boxes["still_us"] == -1).all() and (boxes["w"] == 20).all()
    assert boxes["track_id"].tolist() == [1, 2, 3, 4, 0, 0, 0]
    short = agreed_boxes(forward, backward, ({**seconds[0], 1: 0.05}, seconds[1]), np.array([3, 7]), CONFIG)
    assert short["pseudo_score"][0] == pytest.approx(-0.8)


def test_one_box_backwards_agrees_with_one_box_forwards_only():
    forward, backward = found((10, 0.9, 0, 1), (12, 0.8, 0, 2)), found((10, 0.7, 0, 1))
    boxes = agreed_boxes(forward, backward, ({1: 1.0, 2: 1.0}, {1: 1.0}), np.array([0, 1]), CONFIG)
    assert np.sign(boxes["pseudo_score"]).tolist() == [1, -1]
    for other in (found((10, 0.9, 1, 1)), found((90, 0.9, 0, 1))):  # of another class, elsewhere
        alone = agreed_boxes(forward, other, ({1: 1.0, 2: 1.0}, {1: 1.0}), np.array([0, 1]), replace(CONFIG, min_iou=0))
        assert np.sign(alone["pseudo_score"]).tolist() == [-1, -1, -1]
    nothing = agreed_boxes(found(), found(), ({}, {}), np.array([0, 1]), CONFIG)
    assert len(nothing) == 0 and nothing.dtype == BOX_DTYPE


@pytest.fixture
def recording(draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(4_000), 48, 64)
    return open_recording(tmp_path / "a_td.dat")


def test_labels_stand_at_window_ends_between_the_annotated_times(live_checkpoint, recording):
    checkpoint = live_checkpoint()
    checkpoint.spec = replace(SMALL, class_ids=(2, 5))
    config = LabelConfig(min_score=0.2, min_track_ms=0)
    boxes = find_pseudo_boxes(checkpoint, recording, np.zeros(0, np.int64), config)
    assert np.unique(boxes["t"]).tolist() == [7_000_000 + 50_000 * i for i in range(1, 9)]
    assert (boxes["pseudo_score"] != 0).all() and set(boxes["class_id"]) <= {2, 5}
    partly = find_pseudo_boxes(checkpoint, recording, np.array([7_120_000, 7_220_000]), config)
    times = [7_070_000, 7_170_000, 7_270_000, 7_320_000, 7_370_000, 7_420_000]
    assert np.unique(partly["t"]).tolist() == times
    rarely = find_pseudo_boxes(checkpoint, recording, np.zeros(0, np.int64), replace(config, interval_ms=150))
    assert np.unique(rarely["t"]).tolist() == [7_050_000, 7_200_000, 7_350_000]
    assert (rarely == boxes[np.isin(boxes["t"], rarely["t"])]).all()
    # counted from the label before: what is labelled as often gets nothing, and the phase is that of the labels
    config = replace(config, interval_ms=150)
    usual = find_pseudo_boxes(checkpoint, recording, np.array([7_120_000, 7_270_000, 7_420_000]), config)
    assert len(usual) == 0
    gap = find_pseudo_boxes(checkpoint, recording, np.array([7_070_000, 7_120_000]), config)
    assert np.unique(gap["t"]).tolist() == [7_270_000, 7_420_000]


def test_uncertain_boxes_go_down_to_half_of_the_score_whatever_it_is(live_checkpoint, recording, monkeypatch):
    arguments = live_checkpoint(), recording, np.zeros(0, np.int64), LabelConfig(min_score=0.2)
    boxes = find_pseudo_boxes(*arguments)
    monkeypatch.setattr(pseudo_labels, "LOWEST_SCORE", 0.3)
    assert (find_pseudo_boxes(*arguments) == boxes).all() and np.abs(boxes["pseudo_score"]).min() < 0.2


@pytest.mark.parametrize(("stride_us", "interval_ms", "every"), [(50_000, None, 1), (10_000, 60, 6), (25_000, 45, 2)])
def test_labels_that_training_would_not_keep_are_refused(live_checkpoint, stride_us, interval_ms, every):
    checkpoint = live_checkpoint()
    checkpoint.windows = replace(checkpoint.windows, stride_us=stride_us)
    assert label_every(checkpoint, LabelConfig(interval_ms=interval_ms)) == every
    checkpoint.windows = replace(checkpoint.windows, stride_us=10_000)
    with raises("setting.out_of_range"):
        label_every(checkpoint, LabelConfig(interval_ms=20))


def test_a_time_has_the_same_windows_in_both_directions(live_checkpoint, recording, monkeypatch):
    seen = []
    track_windows = pseudo_labels.track_windows

    def spy(checkpoint, source, windows, config):
        seen.append(windows.bounds_us)
        return track_windows(checkpoint, source, windows, config)

    monkeypatch.setattr(pseudo_labels, "track_windows", spy)
    find_pseudo_boxes(live_checkpoint(), recording, np.zeros(0, np.int64), LabelConfig())
    forward, backward = seen
    first_us, last_us = recording.time_range_us
    assert (first_us + last_us + 1 - backward[::-1, 1] == forward[:, 1]).all()  # what ends then begins here
    assert (np.diff(backward) == 50_000).all() and (np.diff(forward) == 50_000).all()


def make_tree(raw: Path, draw_events) -> Path:
    """Two recordings without labels, one with a few, and one of validation."""
    for number, name in enumerate(("train/a", "train/b", "train/c", "val/d")):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        write_dat(raw / f"{name}_td.dat", draw_events(2_000, seed=number), 48, 64)
    boxes = np.zeros(2, BOX_DTYPE)
    boxes["t"], boxes["x"], boxes["w"], boxes["h"] = (7_200_000, 7_300_000), 5, 20, 20
    boxes["track_id"], boxes["still_us"] = 4, -1
    for name in ("train/c", "val/d"):
        write_boxes(raw / f"{name}_bbox.npy", boxes)
    return raw


def labelled_bytes(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*_bbox.npy"))}


def as_synthetic(weights):
    """The weights as if they were trained on the synthetic dataset at this size."""
    weights.spec = replace(SPEC, height=48, width=64)
    return weights


@pytest.fixture(scope="module")
def labelled(live_checkpoint, draw_events, tmp_path_factory):
    """The weights, a tree, the words of `rvtssm label` for it, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("labelled")
    weights = as_synthetic(live_checkpoint())
    write_checkpoint(folder / "best.ckpt", weights.detector, weights)
    raw = make_tree(folder / "raw", draw_events)
    words = ["label", f"checkpoint={folder / 'best.ckpt'}", f"dataset.raw_dir={raw}", "min_score=0.2", "min_track_ms=0"]
    assert cli.main([*words, f"out={folder / 'out'}"]) == 0
    return weights, raw, words, folder / "out"


def test_the_verb_writes_a_tree_with_the_annotated_boxes_as_they_were(labelled):
    _, raw, _, out = labelled
    whole = labelled_bytes(out)
    assert list(whole) == [f"{name}_bbox.npy" for name in ("train/a", "train/b", "train/c", "val/d")]
    assert whole["val/d_bbox.npy"] == (raw / "val/d_bbox.npy").read_bytes()
    assert all(
        (out / f"{name}_td.dat").resolve() == (raw / f"{name}_td.dat").resolve() for name in ("train/a", "val/d")
    )
    boxes = read_boxes(out / "train/c_bbox.npy")
    assert (annotated(boxes) == read_boxes(raw / "train/c_bbox.npy")).all()
    made = boxes[boxes["pseudo_score"] != 0]
    assert len(made) and not set(made["track_id"]) & {4} and not set(made["t"]) & {7_200_000, 7_300_000}


def test_an_interrupted_run_goes_on_and_other_settings_are_refused(labelled, tmp_path, monkeypatch, refused, capsys):
    _, raw, words, whole = labelled
    calls, find = [], find_pseudo_boxes

    def interrupted(*arguments):
        calls.append(arguments[1].path.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return find(*arguments)

    monkeypatch.setattr(verb, "find_pseudo_boxes", interrupted)
    words = [*words, f"out={tmp_path}"]
    assert cli.main(words) == 130 and cli.main(words) == 0
    assert calls == ["a_td.dat", "b_td.dat", "b_td.dat", "c_td.dat"]
    assert labelled_bytes(tmp_path) == labelled_bytes(whole)
    capsys.readouterr()
    line = refused(*words, "min_score=0.3")
    assert "made with min_score=0.2 instead of 0.3; delete it, or choose another folder" in line
    assert "another folder than that of the recordings" in refused(*words, f"out={raw}")


@pytest.mark.parametrize("source", ["raw", "prepared"])
def test_training_sees_the_labels_of_a_detector_unless_they_are_left_out_and_scores_never_do(
    labelled, tmp_path, source
):
    weights, _, _, out = labelled
    how = PreprocessConfig(workers=1, splits=("train", "val"))
    if source == "prepared":
        preprocess_dataset(weights.spec, out, tmp_path, weights.windows, how, progress=False)
    config = DatasetConfig("synthetic", str(out), str(tmp_path), height=48, width=64, source=source)
    training, without = (SequenceDataModule(config, has_pseudo_labels=is_used) for is_used in (True, False))
    assert [sequence.name for sequence in training.sequences("train")] == ["a", "b", "c"]
    assert any((sequence.labels.pseudo_score > 0).any() for sequence in training.sequences("train"))
    for sequences in (without.sequences("train"), training.eval_sequences("train", weights.windows)):
        (kept,) = sequences
        assert kept.name == "c" and len(kept.labels) == 2 and not kept.labels.pseudo_score.any()
    assert not training.sequences("val")[0].labels.pseudo_score.any()


def test_labels_of_other_formats_become_arrays(labelled, tmp_path):
    _, raw, words, _ = labelled
    custom = tmp_path / "raw"
    (custom / "train").mkdir(parents=True)
    (custom / "train/a.dat").symlink_to(raw / "train/a_td.dat")
    (custom / "train/a.txt").write_text("7200000 1 0.5 0.5 0.25 0.25\n")
    (custom / "dataset.yaml").write_text(
        "classes: [vehicle, person]\nheight: 48\nwidth: 64\nlabels: .txt\nmin_side_px: 2\n"
        "label_columns: [time_us, class, cx, cy, w, h]\n"
    )
    more = f"dataset.raw_dir={custom}", f"out={tmp_path / 'out'}", "dataset=custom"
    assert cli.main([*words[:2], *more]) == 0
    spec = read_spec(tmp_path / "out")
    assert spec.boxes_suffix == "_bbox.npy" and spec.class_names == ("vehicle", "person") and spec.min_side_px == 2
    boxes = annotated(read_boxes(tmp_path / "out/train/a_bbox.npy"))
    assert boxes[["t", "x", "y", "w", "h", "class_id"]].tolist() == [(7_200_000, 24, 18, 16, 12, 1)]
    assert [each.name for each in find_recordings(tmp_path / "out", "train", spec)] == ["a"]


def test_the_description_of_generated_recordings_is_kept(labelled, draw_events, tmp_path, refused):
    _, _, words, _ = labelled
    (tmp_path / "raw/train").mkdir(parents=True)
    described = tmp_path / "raw/synthetic.json"
    described.write_text('{"height": 48, "width": 64}')
    write_dat(tmp_path / "raw/train/a_td.dat", draw_events(500), 48, 64)
    where = f"dataset.raw_dir={tmp_path / 'raw'}", f"out={tmp_path / 'out'}"
    assert "synthetic has vehicle, person; 64 x 32 pixels" in refused(*words, *where, "dataset.height=32")
    assert cli.main([*words, *where]) == 0
    assert (tmp_path / "out/synthetic.json").read_bytes() == described.read_bytes()


def test_the_ids_of_classes_are_those_of_the_dataset(labelled, tmp_path):
    weights, _, words, whole = labelled
    weights = replace(weights, spec=replace(weights.spec, class_ids=(4, 7)))
    write_checkpoint(tmp_path / "other.ckpt", weights.detector, weights)
    where = f"checkpoint={tmp_path / 'other.ckpt'}", f"out={tmp_path / 'out'}"
    assert cli.main([*words, *where, "dataset=synthetic", "dataset.height=48", "dataset.width=64"]) == 0
    assert labelled_bytes(tmp_path / "out") == labelled_bytes(whole)


def test_a_folder_with_files_of_others_is_refused(labelled, tmp_path, refused):
    _, raw, words, _ = labelled
    shutil.copytree(raw, tmp_path / "raw")
    before = labelled_bytes(tmp_path)
    assert "files, but no label.json; choose another folder" in refused(*words, f"out={tmp_path / 'raw'}")
    assert labelled_bytes(tmp_path) == before and len([*tmp_path.rglob("*_td.dat")]) == 4


def test_what_cannot_be_labelled_is_said(live_checkpoint, draw_events, tmp_path, refused, capsys, monkeypatch):
    weights = as_synthetic(live_checkpoint())
    write_checkpoint(tmp_path / "best.ckpt", weights.detector, weights)
    raw = make_tree(tmp_path / "raw", draw_events)
    where = [f"checkpoint={tmp_path / 'best.ckpt'}", f"dataset.raw_dir={raw}", f"out={tmp_path / 'out'}"]
    assert "label the dataset of the weights" in refused("label", *where, "dataset=synthetic")
    (raw / "train/b_td.dat").write_bytes(b"damaged")
    assert cli.main(["label", *where]) == 2
    told = capsys.readouterr()
    assert "b: " in told.err and "2 recordings labelled" in told.out and "1 failed" in told.out
    monkeypatch.setitem(sys.modules, "trackers", None)
    assert "rvtssm label needs the package trackers" in refused("label", *where)


# recordings backwards


HEIGHT, WIDTH, FIRST_US, LAST_US = 24, 32, 5_000, 1_204_999


@pytest.fixture
def reversible(tmp_path):
    rng, n = np.random.default_rng(0), 4_000
    t = np.sort(rng.integers(FIRST_US, LAST_US, n))
    t[0], t[-1] = FIRST_US, LAST_US
    t[100:140] = t[100]  # events of one microsecond
    x, y, p = (rng.integers(0, limit, n) for limit in (WIDTH, HEIGHT, 2))
    write_dat(tmp_path / "a_td.dat", Events(t, *(a.astype(k) for a, k in ((x, "u2"), (y, "u2"), (p, "u1")))), 24, 32)
    return open_recording(tmp_path / "a_td.dat")


def test_every_event_is_there_once_in_the_opposite_order_with_the_opposite_sign(reversible):
    events = reversible.read()
    blocks = list(ReversedRecording(reversible).blocks())
    back = join_events(blocks)
    assert len(blocks) > 2 and (np.diff(back.t) >= 0).all()
    assert (back.t[::-1] == FIRST_US + LAST_US - events.t).all() and (back.p[::-1] == 1 - events.p).all()
    assert (back.x[::-1] == events.x).all() and (back.y[::-1] == events.y).all()


def test_a_reversed_window_has_the_frame_with_bins_and_signs_reversed(reversible):
    mirror = ReversedRecording(reversible)
    ends_us = FIRST_US + 50_000 * np.arange(1, 25)
    windows = Windows(np.stack([ends_us - 50_000, ends_us], axis=1), np.full(24, 50_000))
    bounds_us = np.array([[mirror.at(end), mirror.at(start)] for start, end in windows.bounds_us.tolist()])
    assert [mirror.at(mirror.at(t)) for t in (0, 7)] == [0, 7]
    back = join_events(list(mirror.blocks()))
    frames = count_windows(reversible.read(), windows, HEIGHT, WIDTH)
    mirrored = count_windows(back, Windows(bounds_us[::-1].copy(), windows.dt_us), HEIGHT, WIDTH)
    assert frames.sum() == 4_000 and (mirrored[::-1, ::-1] == frames).all()
