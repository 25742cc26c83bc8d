"""Converted weights are scored as the public code scores them: detections are ranked by the class alone."""

import json

import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events
from test_coco import SPEC, plain_coco
from torchvision.ops import batched_nms

from rvtssm.boxes import cxcywh_to_xyxy, xyxy_to_ltwh
from rvtssm.cli import main as cli
from rvtssm.datasets import DatasetConfig, build_spec
from rvtssm.datasets.data_config import DataConfig
from rvtssm.evaluation.detector_run import WeightsFile
from rvtssm.evaluation.evaluating import evaluate, prepare
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.protocol import scored_labels
from rvtssm.events.labels import write_boxes
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.official import convert_official
from rvtssm.models.streams import Streams
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections

LABELS_US = 600_000 + 250_000 * np.arange(5)  # as far apart as those of Gen1
pytestmark = pytest.mark.usefixtures("without_pictures")
SIZE = ("dataset.height=64", "dataset.width=96")


@pytest.fixture(scope="module")
def weights(golden_dir, tmp_path_factory):
    """The weights of a golden file, converted. Their boxes are made large enough to be scored."""
    with np.load(golden_dir / "model_small.npz") as recorded:
        names = [name for name in recorded.files if name.startswith("sd/")]
        official = {name.removeprefix("sd/"): torch.from_numpy(recorded[name]) for name in names}
    for name in official:
        if "reg_preds" in name and name.endswith("bias"):
            official[name][2:] += 1.6  # logarithm of width and height
    spec = build_spec(DatasetConfig("gen1", height=64, width=96))
    converted = convert_official(official, spec, None, head_dim=8)
    path = tmp_path_factory.mktemp("converted") / "weights.ckpt"
    write_checkpoint(path, converted.detector, converted)
    return path


def dataset_in(raw):
    return DatasetConfig("gen1", str(raw), height=64, width=96)


def planned(weights, raw):
    """The detector, and the test recording in windows of the training."""
    file, loading = WeightsFile(str(weights), "float32"), DataConfig(workers=0)
    run = prepare(file, dataset_in(raw), loading, PostprocessConfig(), EvaluationConfig())
    (sequence,) = run.split.sequences(run.split.plan_rates()[0][0])
    return run, sequence


def detections_of_the_public_code(weights, raw) -> list[Detections]:
    """Thresholds and suppression by objectness times class; the score is the class alone."""
    run, sequence = planned(weights, raw)
    streams = Streams(run.checkpoint.detector, 50_000, run.checkpoint.model_config.memory_chunk)
    hist = torch.from_numpy(sequence.read(0, len(sequence.windows)))[:, None]
    dt_us = torch.from_numpy(sequence.windows.dt_us)[:, None]
    steps = torch.from_numpy(np.unique(sequence.labels.window_index))
    predictions = streams.push(hist, dt_us, torch.stack([steps, 0 * steps], dim=1), [0], [True])
    frames = []
    for rows, t_us in zip(predictions.rows, LABELS_US.tolist(), strict=True):
        objectness, (best, class_id) = rows[:, 4].sigmoid(), rows[:, 5:].sigmoid().max(dim=1)
        xyxy, product = cxcywh_to_xyxy(rows[:, :4]), objectness * best
        chosen = (product >= 0.001).nonzero()[:, 0]
        chosen = chosen[batched_nms(xyxy[chosen], product[chosen], class_id[chosen], 0.45)]
        order = chosen[best[chosen].argsort(descending=True, stable=True)]
        frames.append(Detections(xyxy[order].numpy(), best[order].numpy(), class_id[order].numpy(), t_us))
    return frames


def write_labels(path, frames=()) -> None:
    """At each label time one large box, and those of detections with every third score."""
    rows, classes = [(t_us, 20, 10, 40, 40) for t_us in LABELS_US], [0] * len(LABELS_US)
    for frame in frames:
        boxes = xyxy_to_ltwh(frame.xyxy)
        is_large = (boxes[:, 2:] >= 15).all(axis=1) & (np.hypot(boxes[:, 2], boxes[:, 3]) >= 31)
        for number in np.flatnonzero(is_large)[::3]:
            rows.append((frame.t_us, *np.rint(boxes[number])))
            classes.append(int(frame.class_id[number]))
    order = np.argsort([row[0] for row in rows], kind="stable")
    boxes = boxes_of(*(rows[n] for n in order), still_us=-1)
    boxes["class_id"] = np.array(classes)[order]
    write_boxes(path, boxes)


def test_every_setting_that_changes_ap_stands_beside_it(weights, tmp_path):
    """docs/evaluation.md lists them: those that are not in the checkpoint, at other values than the defaults."""
    raw = tmp_path / "raw"
    (raw / "test").mkdir(parents=True)
    write_dat(raw / "test/a_td.dat", random_events(30_000, 0, 1_700_000, 40_000, (64, 96)), 64, 96)
    write_labels(raw / "test/a_bbox.npy")
    where = f"checkpoint={weights}", "dataset=gen1", *SIZE, f"dataset.raw_dir={raw}", "bootstrap=0", "data.workers=0"
    changed = {
        "score": {
            "postprocess.score=objectness_times_class": "objectness_times_class, from 0.01",
            "postprocess.min_score=0.01": "postprocess.min_score=0.01; after the training",
            "postprocess.nms_iou=0.6": "non-maximum suppression per class at IoU 0.6",
            "postprocess.max_detections=5": "at most 5 per frame",
        },
        "data": {"dataset.repair=true": "faulty recordings repaired", "dataset.label_offset_us=7": "7 us added"},
        "windows": {"window=shrink": "shrink, counted from raw", "grid=free": "free grid"},
        "time step": {"step_scale=1": "1 whatever the rate"},
        "memory": {"memory=carried": "carried"},
        "precision": {"precision=bf16": "bf16 on cpu"},
        "still objects": {"still_ms=150": "no motion for 150 ms"},
        "classes": {"class_map={}": "evaluation.class_map={}"},
    }
    words = [word for by_word in changed.values() for word in by_word]
    printed = []
    for more in ([], words):
        assert cli.main(["evaluate", *where, *more, f"out={tmp_path / 'out'}"]) == 0
        printed.append(json.loads((tmp_path / "out/evaluation.json").read_text())["settings"])
    usual, other = printed
    for name, by_word in changed.items():
        for word, text in by_word.items():
            assert text in other[name] and other[name] != usual.get(name), word
    rules = "boxes and detections up to 0.5 s or with a side under 10 px or with a diagonal under 30 px (96 x 64 frame)"
    assert rules in usual["scored"] and "best 100 detections of each class" in usual["scored"]
    assert "96 x 64 pixels, padded with zeros at the right and the bottom" in usual["frames"]


def test_converted_weights_have_the_ap_of_the_public_code(weights, tmp_path):
    raw = tmp_path / "raw"
    (raw / "test").mkdir(parents=True)
    write_dat(raw / "test/a_td.dat", random_events(30_000, 0, 1_700_000, 40_000, (64, 96)), 64, 96)
    write_labels(raw / "test/a_bbox.npy")
    frames = detections_of_the_public_code(weights, raw)
    write_labels(raw / "test/a_bbox.npy", frames)
    _, sequence = planned(weights, raw)
    labels = scored_labels(sequence.labels, SPEC)
    expected = plain_coco([("a", labels, frames)]).stats[0]

    said: list[str] = []

    def ap(score: str | None = None) -> tuple[float, str]:
        where = {"dataset": dataset_in(raw), "data": DataConfig(workers=0), "bootstrap": 0, "precision": "float32"}
        report = evaluate(weights, **where, postprocess=PostprocessConfig(score=score), say=said.append)
        return report.rows[0].metrics["AP"], report.settings["score"]

    assert read_checkpoint(weights).scored_as.score == "class_only"
    found, printed = ap()
    assert found == pytest.approx(expected, abs=1e-6) and found > 0.01
    assert printed.startswith("class_only")
    other, printed = ap("objectness_times_class")
    assert other != pytest.approx(found, abs=1e-4)
    assert "were scored with class_only" in printed and "were scored with class_only" in " ".join(said)
