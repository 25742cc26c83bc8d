"""What an evaluation writes of its boxes: pycocotools finds the AP of the report in it, and tables add up to it."""

import contextlib
import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from event_examples import boxes_of, random_events, write_labelled
from live_examples import draw_events, live_checkpoint  # noqa: F401
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rvtssm.datasets import DataConfig, DatasetConfig, PreprocessConfig
from rvtssm.datasets.custom import read_spec
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.evaluation import evaluating
from rvtssm.evaluation.coco import average_precisions
from rvtssm.evaluation.evaluating import evaluate
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.evaluation.scored_files import write_scored
from rvtssm.events.labels import nothing_at
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.records import WindowSettings
from tests.evaluation.test_coco import SPEC as GEN1
from tests.evaluation.test_coco import random_recording
from tests.evaluation.test_evaluate import SPEC

pytestmark = pytest.mark.usefixtures("without_pictures")


def by_pycocotools(folder: Path, place: str) -> dict[str, float]:
    """The numbers of pycocotools on two files alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(folder / f"{place}_labels.json")
        results = json.loads((folder / f"{place}_detections.json").read_text())
        judge = COCOeval(truth, truth.loadRes(results) if results else COCO(), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    names = "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"
    return {name: np.nan if value == -1 else value for name, value in zip(names, judge.stats[:6], strict=True)}


def check(folder: Path, place: str, metrics: dict) -> None:
    for name, value in by_pycocotools(folder, place).items():
        ours = np.nan if metrics[name] is None else metrics[name]
        assert ours == pytest.approx(value, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scores_empty_images", [False, True])
@pytest.mark.parametrize("downsample", [1, 2])
def test_pycocotools_finds_the_same_numbers(seed, scores_empty_images, downsample, tmp_path):
    """Boxes that are too small, early ones, empty images, boxes beyond the frame and equal scores are among them."""
    rng = np.random.default_rng(seed)
    spec = replace(GEN1, scores_empty_images=scores_empty_images, downsample=downsample)
    recordings = []
    for name in "abc":
        labels, detections = random_recording(rng)
        empty_us = np.array([labels.t_us.max() + 50_000, labels.t_us.max() + 100_000])
        labels = replace(labels, empty_us=empty_us)
        detections = [replace(frame, score=np.round(frame.score, 1)) for frame in detections]
        detections += [replace(detections[0], t_us=int(t_us)) for t_us in empty_us]
        recordings.append(ScoredRecording(name, labels, detections))
    matches = match_detections(recordings, spec)
    write_scored(tmp_path, "20hz_slide", ["coco", "csv"], recordings, matches, spec)
    metrics = average_precisions(matches, spec)
    scored = tmp_path / "scored"
    check(scored, "20hz_slide", metrics)
    with open(scored / "20hz_slide_recordings.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    alone = average_precisions(matches[:1], spec)
    assert [row["recording"] for row in rows] == list("abc") and float(rows[0]["AP"]) == alone["AP"]
    with open(scored / "20hz_slide_images.csv", newline="") as file:
        images = list(csv.DictReader(file))
    assert sum(int(row["hits"]) + int(row["missed"]) for row in images) == sum(int(row["boxes"]) for row in rows)


@pytest.fixture(scope="module")
def weights(tmp_path_factory, live_checkpoint) -> Path:  # noqa: F811
    """Weights whose boxes are as likely as not, and two recordings."""
    folder = tmp_path_factory.mktemp("scored")
    for seed, name in enumerate("ab"):
        rows = []
        for number, t_us in enumerate(range(250_000, 1_100_000, 50_000)):
            rows.append((t_us, 2 + number, 3, 6 + 2 * number, 25))  # the first ones are too small
        events = random_events(5_000, seed, 1_090_000, 10_000)
        write_labelled(folder / "raw/test", name, events, boxes_of(*rows, still_us=-1))
    trained = replace(
        live_checkpoint(num_blocks=(0, 0, 0, 1)), spec=replace(SPEC, min_side_px=12), raw_dir=str(folder / "raw")
    )
    write_checkpoint(folder / "model.ckpt", trained.detector, trained)
    return folder / "model.ckpt"


@pytest.mark.parametrize(
    "asked",
    [{"hz": [20, 40], "window": "both"}, {"grid": "free", "hz": [30]}, {"streaming": True, "latency_ms": 30}],
    ids=["rates", "free", "streaming"],
)
def test_the_boxes_of_every_row_can_be_held(weights, tmp_path, asked):
    usual = {"bootstrap": 0, "data": DataConfig(workers=0), "precision": "float32", "time_shifts_ms": []}
    boxes = PostprocessConfig(min_score=0)
    report = evaluate(weights, out=tmp_path, formats=["coco", "csv"], postprocess=boxes, **usual, **asked)
    places = set()
    for row in report.rows:
        (labels,) = [*tmp_path.glob(f"scored/{row['hz']:g}hz_*{row['window']}*_labels.json")]
        place = labels.name.removesuffix("_labels.json")
        places.add(place)
        check(tmp_path / "scored", place, row)
        assert json.loads((tmp_path / f"scored/{place}_detections.json").read_text())
    assert len([*tmp_path.glob("scored/[!.]*")]) == 4 * len(places)


ONE_KIND = {"bootstrap": 0, "data": DataConfig(workers=0), "precision": "float32", "window": "slide"}


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*") if path.is_file()}


@pytest.mark.parametrize("is_single", [False, True])
def test_no_boxes_of_an_earlier_evaluation_stay_and_all_files_of_others_do(weights, tmp_path, is_single):
    if is_single:  # so that no earlier rate was done
        evaluate(weights, out=tmp_path, formats=["csv"], hz=[20], **ONE_KIND)
    evaluate(weights, out=tmp_path, formats=["csv"], hz=[20, 40], **ONE_KIND)
    scored = tmp_path / "scored"
    assert len([*scored.glob("40hz_slide_*")]) == 2
    (scored / "40hz_slide_images.csv").write_text("changed by someone else\n")
    (scored / "40hz_slide.txt").touch()
    of_others = {"40hz_slide.txt", "40hz_slide_images.csv"}
    evaluate(weights, out=tmp_path, formats=["csv"], hz=[20], **ONE_KIND)
    assert files_in(scored).keys() == of_others | {"20hz_slide_images.csv", "20hz_slide_recordings.csv"}
    evaluate(weights, out=tmp_path, hz=[20], **ONE_KIND)
    assert files_in(scored).keys() == of_others


@pytest.mark.parametrize("rates", [[20], [20, 40]])
def test_boxes_of_an_interrupted_evaluation_are_not_taken_for_those_of_another(weights, tmp_path, monkeypatch, rates):
    wanted = {"formats": ["coco"], "hz": [20, 40], "postprocess": PostprocessConfig(min_score=0), **ONE_KIND}
    evaluate(weights, out=tmp_path, **wanted)
    before, files = files_in(tmp_path), files_in(tmp_path / "scored")

    def interrupt(*_):
        raise KeyboardInterrupt

    other = wanted | {"hz": rates, "postprocess": PostprocessConfig(min_score=0.7)}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evaluating, "score_rate", interrupt)  # before it has anything to write
        evaluate(weights, out=tmp_path, **other)
    assert files_in(tmp_path) == before and files_in(tmp_path / "scored") == files
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evaluating, "write_scored", lambda *what: write_scored(*what) or interrupt())
        evaluate(weights, out=tmp_path, **other)
    # No report says what these boxes are, and none of another evaluation is beside them.
    assert not files_in(tmp_path)
    (place,) = {name.partition("_")[0] for name in files_in(tmp_path / "scored")}
    assert files_in(tmp_path / "scored")[f"{place}_slide_detections.json"] != files[f"{place}_slide_detections.json"]
    evaluate(weights, out=tmp_path, **wanted)
    assert files_in(tmp_path / "scored") == files


@pytest.mark.parametrize("source", ["raw", "prepared"])
@pytest.mark.parametrize(
    "asked",
    [{}, {"grid": "free"}, {"streaming": True, "latency_ms": 5}],
    ids=["labels", "free", "streaming"],
)
@pytest.mark.parametrize("quiet", ["no object", "other objects", "one of three"])
def test_a_quiet_recording_is_scored(weights, tmp_path, source, asked, quiet):
    """Its images are there, so that a false box costs precision: nothing in view, or only what is no class."""
    if source == "prepared" and asked:
        pytest.skip("prepared recordings end at labels")
    raw, times_us = tmp_path / "raw", np.arange(300_000, 1_000_000, 100_000)
    names = ["busy", "quiet", "still"][: 3 if quiet == "one of three" else 2]
    for seed, name in enumerate(names):
        boxes = boxes_of(*((t_us, 2, 3, 20, 25) for t_us in times_us), still_us=-1)
        if name == "quiet":
            boxes = nothing_at(times_us)
            if quiet == "other objects":
                boxes = boxes_of(*((t_us, 2, 3, 20, 25) for t_us in times_us), still_us=-1)
                boxes["class_id"] = 7
        write_labelled(raw / "test", name, random_events(5_000, seed, 1_090_000, 10_000), boxes)
    classes = "classes: [vehicle, person]\nignored_classes: [7]\nheight: 48\nwidth: 64\nlabels: _bbox.npy\n"
    (raw / "dataset.yaml").write_text(f"{classes}event_suffixes: [_td.dat]\n")
    where = {"raw_dir": raw}
    if source == "prepared":
        settings = WindowSettings(50_000, None, "exact", 10, 10)
        how = PreprocessConfig(splits=("test",), workers=1)
        preprocess_dataset(read_spec(raw), raw, tmp_path / "prepared", settings, how, progress=False)
        (tmp_path / "prepared/dataset.yaml").write_text((raw / "dataset.yaml").read_text())
        where = {"prepared_dir": tmp_path / "prepared"}
    usual = {"bootstrap": 0, "data": DataConfig(workers=0), "dataset": DatasetConfig("custom"), "class_map": {}}
    usual |= {"window": "shrink", "time_shifts_ms": []}
    boxes = PostprocessConfig(min_score=0)
    out = tmp_path / "out"
    evaluate(weights, out=out, formats=["coco", "csv"], postprocess=boxes, **usual, **where, **asked)
    (file,) = out.glob("scored/*_images.csv")
    with open(file, newline="") as lines:
        images = [row for row in csv.DictReader(lines) if row["recording"] == "quiet"]
    (labels,) = out.glob("scored/*_labels.json")
    assert len(images) == len(times_us) and all(row["boxes"] == "0" for row in images)
    assert sum(image["recording"] == "quiet" for image in json.loads(labels.read_text())["images"]) == len(times_us)
