"""The benchmark of transfer: boxes of masks, MOT files, the split by time, scores, and what its file holds."""

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from scored_rows import by_rate

from benchmarks.transfer import __main__ as transfer
from benchmarks.transfer import finetune, footage, scoring
from benchmarks.transfer.footage import (
    FOOTAGE,
    MOVING,
    MotRow,
    Places,
    boxes_of_mask,
    find_places,
    mot_rows,
    unsure_boxes,
    write_mot,
)
from benchmarks.transfer.scoring import (
    LabelledRecording,
    SmoothingTracker,
    offsets,
    read_split,
    score,
    without_offsets,
    without_regions,
)
from rvtssm.cli import main as cli
from rvtssm.contrib.worlds.video import open_video
from rvtssm.contrib.worlds.video_labels import read_video_labels
from rvtssm.datasets import custom
from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.sources import opened_source
from rvtssm.detection.track_objects import Tracker
from rvtssm.drawing.pictures import Images
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.yolox import YoloxHead
from rvtssm.records import Detections, Labels

HEIGHT, WIDTH, NUM = 48, 64, 16  # of the drawn pictures, which show a square
CROSSING, HIGHWAY, PATHS = (
    replace(FOOTAGE[0], fps=20.0, unlabelled=((0, 0, 8, 8),)),
    replace(FOOTAGE[1], fps=20.0, first=3, first_labelled=5, every=2),
    replace(FOOTAGE[2], fps=20.0, first=2, last=12, first_labelled=3, unlabelled=((0, 0, 16, 16),)),
)


def square(number: int) -> tuple[int, int, int, int]:
    """Where the square is in a picture: it moves by 2 pixels per picture."""
    return 4 + 2 * number, 15, 14, 16


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """A folder with the clones, with drawn pictures and labels of each kind. Pictures of PATHS are twice as large."""
    folder = tmp_path_factory.mktemp("footage")
    names = {"img": ("OpenTracker", "sequences/Crossing/img"), "highway": ("FrameDifference", "highway/input")}
    places = [folder / clone / pictures for clone, pictures in names.values()]
    masks = folder / "FrameDifference/highway/groundtruth"
    large, mot = folder / PATHS.clone / PATHS.pictures, folder / f"owner+{PATHS.labels_clone}" / PATHS.labels
    for place in (*places, masks, large, mot.parent):
        place.mkdir(parents=True)
    for number in range(NUM):
        left, top, width, height = square(number)
        picture, mask = np.full((HEIGHT, WIDTH), 40, np.uint8), np.zeros((HEIGHT, WIDTH), np.uint8)
        picture[top : top + height, left : left + width] = 220
        mask[top : top + height, left : left + width] = MOVING
        mask[:8, 50:] = MOVING
        for place in places:
            cv2.imwrite(str(place / f"{number + 1:04d}.png"), picture)
        cv2.imwrite(str(masks / f"gt{number + 1:06d}.png"), mask)
        cv2.imwrite(str(large / f"{number + 1:06d}.png"), cv2.resize(picture, None, fx=2, fy=2))
    rectangles = [",\t"[number % 2].join(map(str, square(number))) for number in range(NUM)]
    (folder / "OpenTracker/sequences/Crossing/groundtruth_rect.txt").write_text("\r\n".join([*rectangles, ""]))
    doubled = [",".join(str(2 * side) for side in square(number)) for number in range(NUM)]
    rows = [f"{number + 1},7,{box},{number % 4 and 1},-1,-1,-1\n" for number, box in enumerate(doubled)]
    mot.write_text("".join(rows))
    return folder


@pytest.fixture(autouse=True)
def short_gap(monkeypatch):
    """The drawn sequences are shorter than a second."""
    monkeypatch.setattr(finetune, "GAP_US", 50_000)


@pytest.fixture(scope="module")
def checkpoint(live_checkpoint):
    """A small detector of persons and vehicles, with random weights."""
    weights = live_checkpoint()
    weights.spec = replace(weights.spec, class_names=("person", "vehicle"), skip_us=0)
    return weights


@pytest.fixture(scope="module")
def trees(clones, tmp_path_factory):
    """Both sequences as datasets, with their regions without labels."""
    folder = tmp_path_factory.mktemp("simulated")
    return {
        part.name: footage.simulate_footage(part, find_places(clones, part), folder, "davis346")
        for part in (CROSSING, HIGHWAY)
    }


def frame_of(*rows: tuple[float, ...], t_us: int = 0) -> Detections:
    """Detections from rows of left, top, right, bottom and score."""
    found = np.array(rows, np.float32).reshape(-1, 5)
    return Detections(found[:, :4], found[:, 4], np.zeros(len(found), np.int64), t_us)


# boxes and labels


def test_boxes_of_a_mask_are_its_components_and_some_are_not_sure():
    mask = np.zeros((60, 80), np.uint8)
    mask[20:30, 10:25] = MOVING
    mask[19, 10:25] = 170  # the blurred edge is no part of it
    mask[0:8, 40:52] = MOVING  # far away, at the upper edge
    mask[50:53, 60:63] = MOVING  # a few pixels
    mask[30:50, 30:34] = mask[46:50, 30:50] = MOVING  # two objects that touch fill little of their box
    assert boxes_of_mask(mask) == ([(10, 20, 15, 10)], [(40, 0, 12, 8), (30, 30, 20, 20)])
    assert boxes_of_mask(np.zeros((4, 4), np.uint8)) == ([], [])


def test_rows_count_frames_from_the_first_picture_that_is_used(clones):
    rows = mot_rows(HIGHWAY, find_places(clones, HIGHWAY))
    assert [row.frame for row in rows if row.is_sure] == [3, 5, 7, 9, 11, 13]  # pictures 5, 7, ... of those from 3 on
    assert [row.box for row in rows if row.is_sure] == [square(number) for number in range(4, NUM, 2)]
    assert {row.box for row in rows if not row.is_sure} == {(50, 0, 14, 8)}
    rows = mot_rows(CROSSING, find_places(clones, CROSSING))
    assert [(row.frame, row.box) for row in rows if row.is_sure] == [(n + 1, square(n)) for n in range(NUM)]
    assert sum(row.box == (0, 0, 8, 8) and not row.is_sure for row in rows) == NUM
    assert len({row.track for row in rows if row.is_sure}) == 1


def test_large_pictures_become_small_with_their_boxes_and_labels_can_be_in_another_clone(clones, tmp_path):
    places = find_places(clones, PATHS)
    assert places.labels.parts[len(clones.parts)] == f"owner+{PATHS.labels_clone}"
    rows = mot_rows(PATHS, places)
    labelled = [n for n in range(3, 13) if (n - 1) % 4]  # a row with `valid` 0 is not sure
    assert [(row.frame, row.box) for row in rows if row.is_sure] == [(n - 1, square(n - 1)) for n in labelled]
    unsure = [(row.frame, row.box) for row in rows if not row.is_sure]
    assert unsure == [*((n - 1, square(n - 1)) for n in (5, 9)), *((n - 1, (0, 0, 8, 8)) for n in labelled)]
    for _ in range(2):  # copies are made once
        tree, _ = footage.simulate_footage(PATHS, places, tmp_path, "davis346")
    spec = custom.read_spec(tree)
    assert (spec.height, spec.width) == (HEIGHT, WIDTH)
    assert len(list((tmp_path / "pictures/paths").iterdir())) == 11
    places.labels.with_name("other").mkdir()
    (wrong := places.labels.with_name("other") / "gt.txt").write_text("1,2,3\n")
    with pytest.raises(ValueError, match="in line 1; `frame,track,left,top,width,height,valid` is needed"):
        mot_rows(PATHS, Places(places.pictures, wrong))
    assert find_places(clones, replace(PATHS, labels="none/gt.txt")) is None


def test_simulate_reads_what_is_written_and_leaves_out_what_is_not_sure(tmp_path):
    rows = [MotRow(3, -1, (5, 6, 7.5, 8), True), MotRow(1, -1, (1, 2, 3, 4), True), MotRow(3, -1, (0, 0, 9, 9), False)]
    write_mot(tmp_path / "a/gt.txt", rows)
    assert (tmp_path / "a/gt.txt").read_text() == "1,-1,1,2,3,4,1\n3,-1,5,6,7.5,8,1\n3,-1,0,0,9,9,0\n"
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.zeros((20, 30), np.uint8))
    boxes, names = read_video_labels(tmp_path / "a/gt.txt", "mot", open_video(tmp_path, 18, None), ["person"])
    assert names == ("person",) and boxes["x"].tolist() == [1, 5]
    unsure = unsure_boxes(rows, 18)
    assert list(unsure) == [boxes["t"][1]] and unsure[boxes["t"][1]].tolist() == [[0, 0, 9, 9]]


# scores


def test_boxes_in_regions_without_labels_do_not_count():
    truth, regions = np.array([[10, 10, 20, 20]], np.float32), np.array([[0, 0, 15, 40], [50, 0, 60, 9]], np.float32)
    found = frame_of(
        (0, 0, 10, 10, 0.9),  # in the region
        (10, 10, 20, 20, 0.8),  # half in it, but the label
        (12, 30, 18, 36, 0.7),  # half in it
        (13, 30, 19, 36, 0.6),  # a third in it
        (70, 0, 80, 9, 0.5),
    )
    np.testing.assert_allclose(without_regions(found, truth, regions).score, [0.8, 0.6, 0.5])
    assert len(without_regions(found, truth, np.zeros((0, 4), np.float32))) == 5
    assert len(without_regions(found, np.zeros((0, 4), np.float32), regions)) == 2
    assert len(without_regions(frame_of(), truth, regions)) == 0


def test_what_is_detected_is_what_a_prediction_finds(trees, checkpoint, tmp_path):
    tree, _ = trees["highway"]
    (recording,) = read_split(tree, "test", custom.read_spec(tree), checkpoint)
    for reduction in (1, 2):
        wanted: dict[int, Detections] = {}
        with opened_source(str(recording.path)) as source:
            source = replace(source, images=Images(np.unique(recording.labels.t_us), []))  # windows end at their times
            predict_recording(
                checkpoint,
                source,
                tmp_path / str(reduction),
                DetectionConfig(downsample=reduction),
                PredictConfig(formats=[]),
                on_window=lambda result, wanted=wanted: wanted.setdefault(result.t_us, result.detections),
                progress=False,
            )
        _, labels, found = scoring.detected(checkpoint, recording, reduction)
        assert [frame.t_us for frame in found] == np.unique(labels.t_us).tolist() and len(found) == 6
        for frame in found:
            np.testing.assert_allclose(frame.xyxy, wanted[frame.t_us].xyxy, rtol=1e-4, atol=1e-3)
        assert sum(map(len, found)) > 10


@pytest.fixture
def moved(monkeypatch):
    """Every detector finds the square, but more to the right from frame to frame, and something else."""

    def decode(predictions, times_us, config=None):
        frames = []
        for t_us in times_us:
            number = round(int(t_us) / 50_000)
            left, top, width, height = square(number)
            shift = number % 5
            right = left + shift + width
            found = [
                (left + shift, top, right, top + height, 0.9 - shift / 10),
                (2, 30, 20, 45, 0.95 if number % 2 else 0.2),
            ]
            frames.append(frame_of(*sorted(found, key=lambda box: -box[4]), t_us=int(t_us)))
        return frames

    monkeypatch.setattr(YoloxHead, "decode", staticmethod(decode))


def test_scores_are_those_of_the_evaluation(trees, checkpoint, moved, tmp_path, capsys):
    tree, _ = trees["crossing"]
    (recording,) = read_split(tree, "test", custom.read_spec(tree), checkpoint)
    (row,) = score(checkpoint, [recording], 1)
    own = replace(checkpoint, spec=replace(custom.read_spec(tree), min_side_px=2.0, class_names=("person",)))
    own.detector = own.build()
    write_checkpoint(tmp_path / "own.ckpt", own.detector, own)
    words = [f"checkpoint={tmp_path / 'own.ckpt'}", f"dataset.raw_dir={tree}", f"out={tmp_path / 'out'}", "bootstrap=0"]
    assert cli.main(["evaluate", *words]) == 0
    metrics = by_rate(json.loads((tmp_path / "out/evaluation.json").read_text()))["20"]
    assert (row["AP"], row["AP50"]) == pytest.approx((metrics["AP"], metrics["AP50"])) and 0.1 < row["AP"] < 0.9
    assert (row["class"], row["labels"], row["frame"], row["is_usual"]) == ("person", NUM - 1, [64, 48], True)
    assert row["AP_without_offset"] > row["AP"] and row["offset"][0] > 0  # boxes of `moved` lie too far to the right


def test_regions_without_labels_change_the_score(trees, checkpoint, moved):
    tree, unsure = trees["crossing"]
    recordings = read_split(tree, "test", custom.read_spec(tree), checkpoint)
    (plain,) = score(checkpoint, recordings, 1)
    regions = {t_us: np.array([[0, 28, 30, 20]], np.float32) for t_us in unsure}
    (without,) = score(checkpoint, [replace(recordings[0], unsure=regions)], 1)
    assert without["AP"] > plain["AP"]
    with pytest.raises(ValueError, match="none of the labels is scored"):
        score(checkpoint, recordings, 1, skip_us=10**9)
    with pytest.raises(ValueError, match=r"the weights know car; .* has person, which cannot be scored"):
        read_split(
            tree,
            "test",
            custom.read_spec(tree),
            replace(checkpoint, spec=replace(checkpoint.spec, class_names=("car",))),
        )


# trainings on a few windows


def test_few_windows_are_spread_over_the_training_part():
    times_us = np.arange(25)
    assert finetune.spread(times_us, 5).tolist() == [0, 6, 12, 18, 24]
    assert finetune.spread(times_us, 25).tolist() == times_us.tolist()
    assert all(len(set(finetune.spread(times_us, number))) == number for number in range(1, 26))
    with pytest.raises(ValueError, match="there are 25 labelled windows for training, and 26 are asked for"):
        finetune.spread(times_us, 26)


def test_a_training_sees_no_other_label_and_the_scores_no_label_of_the_training(trees, checkpoint, tmp_path):
    tree, _ = trees["crossing"]
    training_us, (apart,) = finetune.kept_apart(read_split(tree, "test", custom.read_spec(tree), checkpoint))
    chosen = finetune.spread(training_us, 3)
    for _ in range(2):  # it can be written again
        finetune.write_few(tree, tmp_path / "few", chosen)
    spec = custom.read_spec(tmp_path / "few")
    for split in ("train", "val"):
        (few,) = read_split(tmp_path / "few", split, spec, checkpoint)
        assert few.labels.t_us.tolist() == chosen.tolist()
    assert len(apart.labels) and apart.labels.t_us.min() > chosen.max() + finetune.GAP_US


def test_weights_are_trained_on_a_few_windows_and_scored_on_the_rest(trees, checkpoint, tmp_path):
    (tree, unsure), path = trees["crossing"], tmp_path / "weights.ckpt"
    write_checkpoint(path, checkpoint.detector, checkpoint)
    words = ["sampling.batch_size=2", "sampling.chunk_length=2", "training.precision=float32"]
    (row,) = finetune.finetune(tree, checkpoint, str(path), 2, "weights", 1, tmp_path / "runs", unsure, words)
    assert row["class"] == "person" and row["labels"] > 0 and row["AP"] is not None
    assert (tmp_path / "runs/2_weights/run/init_from.csv").exists()


# the command


@pytest.fixture
def command(clones, checkpoint, tmp_path, monkeypatch):
    """A function: words -> the rows in the file, after the benchmark has run on the small footage."""
    monkeypatch.setattr(transfer, "FOOTAGE", (CROSSING, HIGHWAY, PATHS))
    monkeypatch.setattr(transfer, "EMPTY", ("davis346",))
    monkeypatch.setattr(footage, "STILL_S", 0.3)
    write_checkpoint(tmp_path / "weights.ckpt", checkpoint.detector, checkpoint)

    def run(*words: str) -> list[dict]:
        options = ["--json", str(tmp_path / "rows.json"), "--folder", str(tmp_path / "made")]
        transfer.main([*options, "--checkpoint", str(tmp_path / "weights.ckpt"), *words])
        return json.loads((tmp_path / "rows.json").read_text())["rows"]

    return run


def test_every_source_has_a_row_per_reduction_and_is_not_done_twice(command, clones, tmp_path, monkeypatch, capsys):
    words = ["--footage", str(clones), "--only", "footage,empty,recordings", "--reductions", "1,2"]
    rows = command(*words)
    assert [(row["source"], row["reduction"], row["frame"]) for row in rows] == [
        *(("crossing", 1, [64, 48]), ("crossing", 2, [32, 24]), ("highway", 1, [64, 48]), ("highway", 2, [32, 24])),
        *(("still davis346", 1, [346, 260]), ("still davis346", 2, [173, 130])),
    ]
    assert [row.get("class") for row in rows] == ["person", "person", "vehicle", "vehicle", None, None]
    assert {row["part"] for row in rows} == {"footage", "empty"}
    still = rows[-1]
    assert still["confident_per_s"] == still["confident"] / still["seconds"]
    assert (tmp_path / "made/seen/still davis346/reduced_by_2/strip.png").is_file()
    said = capsys.readouterr().out
    assert "left out: --recordings names no folder (None)" in said
    assert "| crossing | person | 15 | 1* | 64 x 48 |" in said and "| still davis346 | 0." in said
    for name in ("score", "watch"):
        monkeypatch.setattr(transfer, name, lambda *_, **__: pytest.fail("done again"))
    assert command(*words) == rows


def test_what_is_held_apart_is_scored_only_by_name_and_no_training_sees_it(command, clones, capsys):
    words = ["--footage", str(clones), "--reductions", "1", "--only", "apart"]
    rows = command(*words, "--finetune", "1", "--steps", "1")
    assert [(row["part"], row["source"]) for row in rows] == [("apart", "paths")]
    assert "| paths (held apart) | person | 8 | 1* | 64 x 48 |" in capsys.readouterr().out
    command("--footage", str(clones / PATHS.clone), "--only", "apart")
    assert f"missing in {clones / PATHS.clone}: {PATHS.clone}/{PATHS.pictures} or {PATHS.labels_clone}/" in (
        capsys.readouterr().out
    )
    assert transfer.APART not in transfer.PARTS and [part.held_apart for part in FOOTAGE[:2]] == [False, False]


def test_labels_that_do_not_fit_the_pictures_are_refused(clones, tmp_path):
    clone = tmp_path / "OpenTracker"
    (clone / CROSSING.pictures).mkdir(parents=True)
    for number in (1, 2):
        (clone / CROSSING.pictures / f"{number}.png").touch()
    for text, reason in (
        ("1,2,3,4\n", "has labels of 1 pictures, and there are 2"),
        ("1,2,3\n", "in line 1; `left,top"),
    ):
        (clone / CROSSING.labels).write_text(text)
        with pytest.raises(ValueError, match=reason):
            mot_rows(CROSSING, find_places(tmp_path, CROSSING))
    with pytest.raises(ValueError, match="has no box of a vehicle"):
        mot_rows(replace(HIGHWAY, first_labelled=99), find_places(clones, HIGHWAY))


def test_a_habit_of_boxes_is_found_and_can_be_taken_away():
    rng = np.random.default_rng(0)
    t_us = np.repeat(np.arange(1, 21) * 50_000, 2)
    truth = np.concatenate((rng.uniform(5, 40, (40, 2)), rng.uniform(10, 60, (40, 2))), axis=1).astype(np.float32)
    labels = Labels(truth, np.tile(np.arange(2), 20), t_us, np.repeat(np.arange(20), 2), np.full(40, -1))
    habit = np.array([[-0.1, 0.0, 0.05, 0.2], [0.0, -0.2, 0.0, 0.0]])  # in sides of the label
    frames = []
    for number, time in enumerate(np.unique(t_us)):
        own = truth[2 * number : 2 * number + 2]
        boxes = np.concatenate((own[:, :2], own[:, :2] + own[:, 2:]), axis=1) + habit * np.tile(own[:, 2:], 2)
        far = np.array([[150, 150, 170, 170]])  # of no label
        found = np.concatenate((boxes, far)).astype(np.float32)
        frames.append(Detections(found, np.array([0.9, 0.8, 0.1], np.float32), np.array([0, 1, 0]), int(time)))
    scored = [ScoredRecording("a", labels, frames)]
    found = offsets(scored, 3)
    larger = np.tile([[1.15, 1.2], [1.0, 1.2], [1.0, 1.0]], 2)  # a side of the box, in sides of the label
    np.testing.assert_allclose(found, np.concatenate((habit, np.zeros((1, 4)))) / larger, atol=1e-5)
    (moved,) = without_offsets(scored, found)
    for frame, old in zip(moved.detections, frames, strict=True):
        own = truth[t_us == frame.t_us]
        np.testing.assert_allclose(frame.xyxy[:2], np.c_[own[:, :2], own[:, :2] + own[:, 2:]], atol=1e-3)
        np.testing.assert_array_equal(frame.score, old.score)
    assert not offsets([ScoredRecording("empty", labels, [])], 2).any()


def test_the_first_part_is_for_training_and_the_rest_is_scored():
    times_us = np.repeat(np.arange(0, 10_000_001, 250_000), 2)
    training, scored = finetune.split_times(times_us)
    assert training[0] == 0 and training[-1] == 6_000_000 and len(training) == 25
    assert scored[0] > training[-1] + finetune.GAP_US and scored[-1] == 10_000_000
    assert not set(training) & set(scored)
    assert [len(part) for part in finetune.split_times(np.zeros(0, np.int64))] == [0, 0]


def test_windows_of_pedro_are_scored_each_by_itself(checkpoint, tmp_path):
    rng, given = np.random.default_rng(0), tmp_path
    tmp_path = tmp_path / "examples"
    for number in range(2):
        t = np.sort(rng.integers(10**12, 10**12 + 40_000, 500))
        columns = [t, rng.integers(0, 346, 500), rng.integers(0, 260, 500), rng.integers(0, 2, 500)]
        for kind in ("numpy", "xml"):
            (tmp_path / kind / "test").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"numpy/test/frame{number}.npy", np.stack(columns, axis=1))
        edges = "<xmin>20</xmin><ymin>30</ymin><xmax>60</xmax><ymax>130</ymax>"
        found = f"<object><name>person</name><bndbox>{edges}</bndbox></object>"
        size = "<size><width>346</width><height>260</height></size>"
        (tmp_path / f"xml/test/frame{number}.xml").write_text(f"<annotation>{size}{found}</annotation>")
    assert len(transfer.read_pedro(tmp_path, checkpoint)) == 2
    recordings = transfer.read_pedro(given, checkpoint)
    assert [recording.name for recording in recordings] == ["test/frame0", "test/frame1"]
    assert all(isinstance(each, LabelledRecording) and len(each.windows) == 1 for each in recordings)
    assert [int(each.windows.dt_us[0]) for each in recordings] == [40_000, 40_000]
    (row,) = score(checkpoint, recordings, 2, skip_us=0)
    assert (row["class"], row["labels"], row["frame"]) == ("person", 2, [173, 130])


def boxes_at(t_us, *rows):
    """Detections of rows (left, top, score, class), all boxes of 20 x 20 pixels."""
    corner = np.array([row[:2] for row in rows], np.float32)
    score, class_id = (np.array([row[i] for row in rows], kind) for i, kind in ((2, np.float32), (3, np.int64)))
    return Detections(np.concatenate([corner, corner + 20], axis=1), score, class_id, t_us)


@pytest.mark.parametrize("hz", [20, 100])
def test_smooth_scores_keep_an_object_that_flickers(hz):
    """The score is an average over a time, whatever the rate; boxes, ids and what has no track stay as they are."""
    plain, smooth = Tracker("bytetrack", 2, hz, 1.0, start_score=0.3), SmoothingTracker(2, hz, 0.5)
    scores = []
    for step in range(2 * hz):
        shown = boxes_at(1_000_000 // hz * step, (10, 10, 0.8 if step < hz else 0.2, 0), (90, 10, 0.15, 0))
        wanted, found = plain.update(shown), smooth.update(shown)
        np.testing.assert_array_equal(wanted.track_id, found.track_id)
        np.testing.assert_array_equal(wanted.xyxy, found.xyxy)
        scores.append(found.score[0])
        assert found.score[1] == np.float32(0.15) and shown.score[0] in (np.float32(0.8), np.float32(0.2))
    assert scores[hz - 1] == pytest.approx(0.8)
    # half a second after the score has fallen, 1 / e of the fall is left
    assert scores[hz + hz // 2 - 1] == pytest.approx(0.2 + 0.6 / np.e, abs=0.02)


def test_the_best_smooth_score_comes_first():
    smooth = SmoothingTracker(2, 20, 10.0)
    for step in range(3):
        smooth.update(boxes_at(50_000 * step, (10, 10, 0.9, 0), (90, 10, 0.5, 0)))
    found = smooth.update(boxes_at(150_000, (90, 10, 0.7, 0), (10, 10, 0.4, 0)))
    assert found.xyxy[:, 0].tolist() == [10, 90] and found.score.tolist() == pytest.approx([0.9, 0.5], abs=0.01)
