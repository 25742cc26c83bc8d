"""Boxes of other programs are scored as those of `evaluate`, in every form that the README of the folder names."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from event_examples import boxes_of
from user_errors import raises

import rvtssm
from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.cli import main as cli
from rvtssm.detection.result_files import DETECTION_DTYPE, detection_objects
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.evaluation.scored_files import write_scored
from rvtssm.events.labels import write_boxes
from tests.evaluation.test_coco import SPEC, random_recording

NAMES = ("walk", "drive", "wait")
pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture(scope="module")
def recordings():
    rng = np.random.default_rng(3)
    return [ScoredRecording(name, *random_recording(rng)) for name in NAMES]


@pytest.fixture(scope="module")
def metrics(recordings):
    return evaluate_detections(recordings, SPEC)


def write_coco(folder: Path, recordings, spec=SPEC) -> tuple[Path, Path]:
    """The labels and the detections as `evaluate formats=[coco]` writes them."""
    write_scored(folder, "x", ["coco"], recordings, match_detections(recordings, spec), spec)
    return folder / "scored/x_detections.json", folder / "scored/x_labels.json"


def write_prophesee(folder: Path, recordings) -> tuple[Path, Path]:
    """A folder of detections and one of labels, as Prophesee's tools and `predict` write them."""
    for name, labels, detections in recordings:
        rows = [(t_us, *box) for t_us, box in zip(labels.t_us.tolist(), labels.boxes_ltwh.tolist(), strict=True)]
        boxes = boxes_of(*rows)
        boxes["class_id"] = labels.class_id
        (folder / "labels").mkdir(exist_ok=True)
        write_boxes(folder / f"labels/{name}_bbox.npy", boxes)
        found = np.zeros(sum(map(len, detections)), DETECTION_DTYPE)
        found["t"] = np.repeat([frame.t_us for frame in detections], list(map(len, detections)))
        joined = np.concatenate([frame.xyxy for frame in detections])
        found["x"], found["y"], found["w"], found["h"] = xyxy_to_ltwh(joined).T
        found["class_id"] = np.concatenate([frame.class_id for frame in detections])
        found["class_confidence"] = np.concatenate([frame.score for frame in detections])
        (folder / "found" / name).mkdir(parents=True, exist_ok=True)
        np.save(folder / f"found/{name}/detections.npy", found)
    return folder / "found", folder / "labels"


def write_lines(path: Path, detections, spec=SPEC, late_us: int = 0) -> Path:
    """Windows as `predict` writes them, which end `late_us` before the label."""
    lines = []
    for frame in detections:
        objects = detection_objects(frame, spec.class_names)
        lines.append(json.dumps({"t_us": frame.t_us - late_us, "detections": objects}))
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(reports):
    return {name: report.rows[0] for name, report in reports.items()}


def check(row, metrics, abs=1e-12):
    for name, value in metrics.items():
        assert row[name] == pytest.approx(value, abs=abs, nan_ok=True), name


def test_files_for_cocos_tools_give_the_numbers_of_the_evaluation(recordings, metrics, tmp_path):
    detections, labels = write_coco(tmp_path, recordings)
    (row,) = rows_of(rvtssm.score(detections, labels, bootstrap=50)).values()
    check(row, metrics)
    assert row["low"] < row["AP"] < row["high"]
    (filtered,) = rows_of(rvtssm.score(detections, labels, "gen1", bootstrap=0)).values()
    check(filtered, metrics)


def test_boxes_in_the_layout_of_prophesee_are_scored_by_the_rules_of_the_dataset(recordings, metrics, tmp_path):
    detections, labels = write_prophesee(tmp_path, recordings)
    (row,) = rows_of(rvtssm.score(detections, labels, "gen1", bootstrap=0)).values()
    check(row, metrics, abs=1e-3)  # the layout holds left and width in place of left and right, in float32
    (row,) = rows_of(rvtssm.score(detections / "walk/detections.npy", labels / "walk_bbox.npy", "gen1")).values()
    check(row, evaluate_detections(recordings[:1], SPEC), abs=1e-3)


def test_lines_of_json_are_scored_with_the_newest_window(recordings, tmp_path):
    _, labels = write_prophesee(tmp_path, recordings[:1])
    late = write_lines(tmp_path / "late.jsonl", recordings[0].detections, late_us=20_000)
    with raises("file.content", "no box has the time of a label"):
        rvtssm.score(late, labels, "gen1")
    (row,) = rows_of(rvtssm.score(late, labels, "gen1", max_age_ms=20, bootstrap=0)).values()
    exact = write_lines(tmp_path / "exact.jsonl", recordings[0].detections)
    (same,) = rows_of(rvtssm.score(exact, labels, "gen1", bootstrap=0)).values()
    assert row == pytest.approx(same, nan_ok=True) and row["AP"] > 0


@pytest.mark.parametrize(
    ("changes", "box_changes", "about"),
    [
        ({"t_us": 0.5}, {}, "t_us is 0.5"),
        ({}, {"score": "0.9"}, "score is '0.9'"),
        ({}, {"xyxy": [1, 1, None, 9]}, "xyxy is None"),
        ({}, {"xyxy": [1, 1, 9]}, "four numbers"),
    ],
)
def test_a_line_of_json_holds_numbers_where_numbers_are_needed(recordings, tmp_path, changes, box_changes, about):
    _, labels = write_prophesee(tmp_path, recordings[:1])
    box = {"xyxy": [1, 1, 9, 9], "class": SPEC.class_names[0], "score": 0.9, **box_changes}
    (tmp_path / "found.jsonl").write_text(json.dumps({"t_us": 0, "detections": [box], **changes}))
    with raises("file.content", about):
        rvtssm.score(tmp_path / "found.jsonl", labels, "gen1")


def test_several_detectors_are_compared_in_pairs(recordings, tmp_path, capsys):
    detections, labels = write_coco(tmp_path, recordings)
    worse = []
    for each in recordings:
        worse.append(each._replace(detections=[frame[np.arange(0, len(frame), 2)] for frame in each.detections]))
    write_scored(tmp_path / "worse", "y", ["coco"], worse, [], SPEC)
    out, compared = tmp_path / "out", tmp_path / "worse/scored/y_detections.json"
    words = [str(detections), str(labels), f"score.compared=[{compared}]", f"out={out}"]
    assert cli.main(["score", *words, "bootstrap=50", "score.hz=20", "score.formats=[csv]"]) == 0
    found = json.loads((out / "comparison.json").read_text())
    first, second = (report["rows"][0] for report in found.values())
    assert second["minus_the_first"][0] == pytest.approx(second["AP"] - first["AP"]) and first["hz"] == 20
    printed = " ".join(capsys.readouterr().out.split())
    assert "in points, paired: 20 Hz" in printed and "differences are those of single trainings" in printed
    assert "only 3 recordings" in printed and "to cite" in printed
    assert (out / "1/scored/given_images.csv").is_file() and (out / "2/evaluation.json").is_file()


@pytest.mark.parametrize(
    ("spoil", "key", "about"),
    [
        (lambda labels, found: labels["annotations"][0].update(iscrowd=1), "file.content", "crowd"),
        (lambda labels, found: labels["images"][0].pop("t_us"), "file.damaged", "some images"),
        (lambda labels, found: labels["images"][1].update(id=1), "file.damaged", "the same id"),
        (lambda labels, found: labels.pop("categories"), "file.damaged", "not a COCO data set"),
        (lambda labels, found: labels["annotations"][0].update(category_id=9), "file.content", "class 9; "),
        (lambda labels, found: found[0].update(category_id=9), "file.content", "class 9; "),
        (lambda labels, found: found[0].update(category="tram"), "file.content", "and tram in a box"),
        (lambda labels, found: found[0].update(score=float("nan")), "file.content", "score is nan"),
        (lambda labels, found: labels["annotations"][0].update(image_id=-9), "file.content", "image_id -9; "),
        (lambda labels, found: found[0].update(image_id=-9), "file.content", "image_id -9; "),
        (lambda labels, found: found[0].pop("score"), "file.damaged", "not a COCO result"),
        (lambda labels, found: found[0].update(score="0.9"), "file.content", "score is '0.9'"),
        (lambda labels, found: found[0].update(score=True), "file.content", "score is True"),
        (lambda labels, found: found[0].update(image_id=1.5), "file.content", "image_id is 1.5"),
        (lambda labels, found: found[0].update(category_id="1"), "file.content", "category_id is '1'"),
        (lambda labels, found: found[0].update(bbox=["1", 1, 9, 9]), "file.content", "bbox is '1'"),
        (lambda labels, found: found[0].update(bbox=[1, 1, 9, 9, 9]), "file.content", "four numbers"),
        (lambda labels, found: labels["images"][0].update(t_us=0.5), "file.content", "t_us is 0.5"),
        (
            lambda labels, found: labels["images"][0].update(t_us=1 << 64),
            "file.content",
            "t_us is 18446744073709551616",
        ),
        (lambda labels, found: labels["images"][0].update(id=1.5), "file.content", "id is 1.5"),
        (lambda labels, found: labels["images"][0].update(width=96.5), "file.content", "width is 96.5"),
        (lambda labels, found: labels["categories"][0].update(id=True), "file.content", "id is True"),
        (lambda labels, found: labels["annotations"][0].update(image_id=1.5), "file.content", "image_id is 1.5"),
        (lambda labels, found: labels["annotations"][0].update(category_id=0.5), "file.content", "category_id is 0.5"),
        (
            lambda labels, found: labels["annotations"][0].update(bbox=[1, 1, math.inf, 9]),
            "file.content",
            "bbox is inf",
        ),
    ],
)
def test_what_is_not_in_a_written_form_is_refused(recordings, tmp_path, spoil, key, about):
    detections, labels = write_coco(tmp_path, recordings)
    content, found = json.loads(labels.read_text()), json.loads(detections.read_text())
    spoil(content, found)
    labels.write_text(json.dumps(content))
    detections.write_text(json.dumps(found))
    with raises(key, about):
        rvtssm.score(detections, labels)


@pytest.mark.parametrize("given", [(), ("t_us",), ("recording", "t_us")], ids=str)
def test_the_first_image_counts_like_the_others(tmp_path, given):
    """Of four boxes, one in each image, the first one is not found. Images are numbered, or begin at time 0."""
    images, boxes = [], []
    for number in range(4):
        images.append({"id": number + 7, "width": 96, "height": 64})
        place = {"recording": "walk", "t_us": 50_000 * number}
        images[-1].update({name: place[name] for name in given})
        boxes.append({"id": number, "image_id": number + 7, "category_id": 1, "bbox": [1, 1, 20, 20], "score": 0.9})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "person"}]}
    (tmp_path / "labels.json").write_text(json.dumps(content))
    (tmp_path / "found.json").write_text(json.dumps(boxes[1:]))
    (report,) = rvtssm.score(tmp_path / "found.json", tmp_path / "labels.json", bootstrap=0).values()
    assert report.rows[0]["AP"] == pytest.approx(76 / 101) and report.conditions["scored"].startswith("4 boxes; all")
    if "t_us" in given:  # then the time of a line is enough
        line = {"t_us": 150_000, "detections": [{"xyxy": [1, 1, 21, 21], "class": "person", "score": 0.9}]}
        (tmp_path / "found.jsonl").write_text(json.dumps(line) + "\n")
        (report,) = rvtssm.score(tmp_path / "found.jsonl", tmp_path / "labels.json", bootstrap=0).values()
        assert report.rows[0]["AP"] == pytest.approx(26 / 101)


def test_detections_are_named_and_named_once(tmp_path):
    with raises("setting.missing", "score.detections"):
        rvtssm.score([], tmp_path)
    with raises("setting.conflict", "named once"):
        rvtssm.score([tmp_path, tmp_path], tmp_path)


def test_other_files_and_classes_are_refused_by_name(recordings, tmp_path):
    detections, labels = write_coco(tmp_path, recordings)
    folder, boxes = write_prophesee(tmp_path, recordings)
    with raises("setting.conflict", "has the categories"):
        rvtssm.score(detections, labels, "onempx")
    with raises("setting.needs", "dataset=NAME"):
        rvtssm.score(folder, boxes)
    spoilt = np.load(folder / "wait/detections.npy")
    spoilt["class_confidence"] = np.nan
    np.save(folder / "wait/detections.npy", spoilt)
    with raises("file.content", "not finite"):
        rvtssm.score(folder, boxes, "gen1")
    spoilt = np.load(boxes / "wait_bbox.npy")
    spoilt["w"][0] = np.inf
    np.save(tmp_path / "spoilt_bbox.npy", spoilt)
    with raises("file.content", "spoilt_bbox.npy: a side of a box is not finite"):
        rvtssm.score(folder, tmp_path / "spoilt_bbox.npy", "gen1")
    with raises("file.kind", "one file for 3 recordings"):
        rvtssm.score(folder / "walk/detections.npy", boxes, "gen1")
    (folder / "walk/detections.npy").unlink()
    with raises("file.missing", "walk"):
        rvtssm.score(folder, boxes, "gen1")
    assert cli.main(["score", str(detections)]) == 2
