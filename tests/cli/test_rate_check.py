"""The official weights of S5-ViT-B, converted and scored at several rates without a training."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events

from rvtssm.cli.composition import compose
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.main import main
from rvtssm.contrib.studies import run_study as study
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.evaluation.frequency import published_rows
from rvtssm.events.labels import write_boxes
from rvtssm.models.checkpoint import load_file, read_checkpoint
from rvtssm.models.detector import build_detector
from rvtssm.models.model_config import MODEL_SIZES, SCORES
from rvtssm.models.official import rename_official
from rvtssm.readers.dat import write_dat
from rvtssm.ssm.temporal_config import TemporalConfig

KINDS = ("slide", "shrink")


@pytest.fixture
def official(golden_dir, tmp_path, monkeypatch):
    """A small checkpoint under the keys of the release, with random weights and few channels."""
    monkeypatch.setitem(MODEL_SIZES, "tiny", replace(MODEL_SIZES["tiny"], embed_dim=8, head_dim=8))
    with np.load(golden_dir / "model_small.npz") as recorded:
        shapes = {key.removeprefix("sd/"): recorded[key] for key in recorded.files if key.startswith("sd/mdl.")}
    official_of = {next(iter(rename_official({key: torch.from_numpy(value)}))): key for key, value in shapes.items()}
    torch.manual_seed(0)
    temporal = TemporalConfig(name="s5", clip_real=False)
    weights = {}
    for name, value in build_detector(MODEL_SIZES["tiny"], temporal, 240, 304, 2).state_dict().items():
        block = re.search(r"^neck\.merge.*\.blocks\.(\d+)\.", name)  # the recorded model has one of them each
        number = block[1] if block else "0"
        key = official_of[re.sub(r"(^neck\.merge.*\.blocks)\.\d+\.", r"\1.0.", name)]
        weights[key.replace(".m.0.", f".m.{number}.")] = value
    torch.save({"state_dict": weights}, tmp_path / "gen1_tiny.ckpt")
    return tmp_path / "gen1_tiny.ckpt"


@pytest.fixture
def raw(tmp_path):
    """A test recording of half a second, of the size of Gen1."""
    (tmp_path / "raw/test").mkdir(parents=True)
    write_dat(tmp_path / "raw/test/a_td.dat", random_events(20_000, 0, 560_000, size_hw=(240, 304)), 240, 304)
    boxes = boxes_of((300_000, 0, 0, 60, 40), (550_000, 0, 0, 60, 40), still_us=-1)
    write_boxes(tmp_path / "raw/test/a_bbox.npy", boxes)
    return tmp_path / "raw"


@pytest.mark.golden
def test_official_weights_are_converted_and_scored_without_a_training(official, raw, tmp_path, capsys, monkeypatch):
    """With the memory of the release and a carried one. A command that was killed goes on with the missing cells."""
    out = tmp_path / "out"
    command = ["study", "experiment=gen1_rate_check", f"checkpoint={official}", f"dataset.raw_dir={raw}", f"out={out}"]
    few = ["evaluation.step_scale=null", "hz=[20,40]", "bootstrap=0", "data.workers=0", "model=tiny"]
    few += ["postprocess.score=class_only"]
    calls = []

    def evaluated(config):
        calls.append(config.out)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(config)

    monkeypatch.setattr(study, "evaluate", evaluated)
    assert main([*command, *few]) == 130 and not (out / "study.json").exists()
    assert main([*command, *few]) == 0
    assert len(calls) == 3 and len({*calls}) == 2
    converted = read_checkpoint(out / "weights.ckpt")
    given = load_file(official)["state_dict"].values()
    assert sorted(float(value.double().sum()) for value in converted.detector.state_dict().values()) == sorted(
        float(value.double().sum()) for value in given
    )
    assert (converted.model_config.memory, converted.model_config.memory_chunk) == ("chunk", 21)
    found = json.loads((out / "study.json").read_text())
    rows = [f"memory={memory}" for memory in ("null", "carried")]
    assert [row["row"] for row in found["rows"]] == [f"{row},window={name}" for row in rows for name in KINDS]
    assert all(set(row["rates"]) == {"20", "40"} for row in found["rows"])
    reports = [json.loads((out / row / "evaluation.json").read_text()) for row in rows]
    assert [report["settings"]["memory"] for report in reports] == ["chunk", "carried"]
    page = (out / "study.html").read_text()
    assert "S5-ViT-B, published" in page and "<td>44.5</td>" in page and "seconds of training" not in page
    page = (out / "cells.md").read_text()
    paragraph, _, table = page.partition("\n\n")
    assert (
        paragraph.startswith("We scored the weights gen1_tiny.ckpt (SHA-256 of the tensors ") and len(paragraph) < 3000
    )
    assert "S5-ViT-B, published: 46.44; RVT, published: 35.13" in paragraph
    lines = table.splitlines()
    assert lines[0].endswith("| AP re-run | S5-ViT-B, published | RVT, published |") and len(lines) == 2 + 2 + 4
    assert lines[2].startswith("| 20 Hz | 50 ms every 50 ms | x 1 | chunk | class_only | ")
    assert lines[-1].startswith("| 40 Hz | 25 ms every 25 ms | x 0.5 | carried | class_only | ")
    assert lines[-1].endswith(" | 46.44 | 35.13 |")
    assert main([*command, "seed=0,1"]) == 2
    assert "seed: a study of weights that are given trains nothing" in capsys.readouterr().err


def test_the_rate_check_has_every_cell_and_the_published_rows():
    _, points = compose_study(["experiment=gen1_rate_check"])
    cells = {(each.evaluation.memory, each.evaluation.step_scale, each.postprocess.score) for _, each in points}
    assert cells == {*itertools.product((None, "carried"), (None, 1), SCORES)} and len(points) == 8
    config = compose(["experiment=gen1_rate_check"], "study")
    assert config.checkpoint == "gen1_base.ckpt"  # without weights, the study would train
    assert (config.evaluation.window, config.evaluation.hz) == ("both", [20, 40, 80, 100, 200])
    beside = config.study.numbers_beside()
    for model in ("S5-ViT-B", "RVT"):
        assert beside[f"{model}, published"] == pytest.approx(
            {hz: 100 * ap for hz, ap in published_rows("gen1")[model].items()}
        )
