"""The study of backbones and heads at toy size: every combination builds, and its row is complete."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.parts import live_steps, tables
from benchmarks.parts.__main__ import main
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.datasets import build_spec
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.training.preflight import check
from tests.contrib.studies.test_study import TOY


def test_every_combination_builds_the_parts_that_it_names():
    study, points = compose_study(["experiment=part_study"])
    for values, config in points:
        check(config)
        assert "_".join((config.model.backbone, config.model.head)) == values["variant"]
        assert (config.training.steps, config.training.precision) == (1600, "bf16")
        assert (config.evaluation.window, config.seed) == ("slide", 0)
        with torch.device("meta"):
            meta = CheckpointMeta(build_spec(config.dataset), config.model, config.temporal, config.windows.settings)
            assert list(meta.build().backbone.temporal_layers()) == [4, 8, 16, 32]
    rows = json.loads((Path(tables.__file__).parent / "rows.json").read_text())["rows"]
    assert [(row["name"], row["overrides"]) for row in rows] == study.study.named_variants()


def test_one_combination_from_data_to_row(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    overrides = "model.backbone=timm model.timm_name=test_resnet model.head=rtdetr "
    overrides += "model.head_options.queries=5 model.head_options.layers=1"
    monkeypatch.setattr(live_steps, "LIVE_STEPS", 9)
    words = [*TOY, f"study.variants=['timm_rtdetr: {overrides}']", "evaluation.hz=[20,40]"]
    assert main(["--json", str(path), "--folder", str(tmp_path / "study"), *words]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["name"], row["overrides"], row["steps"]) == ("timm_rtdetr", overrides.split(), 1)
    assert row["parameters"] > 1000 and row["live_ms"] > 0 and row["train_seconds"] > 0
    assert list(row["AP"]) == list(row["AP50"]) == ["20", "40"]
    assert {"cpu", "cpu_extensions", "torch", "commit"} <= set(row)
    assert "| `timm_rtdetr` |" in path.with_name("parts.md").read_text()


def test_a_second_axis_is_refused_before_the_trainings(tmp_path, capsys):
    with pytest.raises(SystemExit):
        words = ["study.variants=['one: model.head=rtdetr']", "seed=0,1"]
        main(["--json", str(tmp_path / "rows.json"), "--folder", str(tmp_path), *words])
    assert "seed has several values; choose one of them" in capsys.readouterr().err and not [*tmp_path.iterdir()]


def test_the_committed_table_is_that_of_the_committed_rows():
    folder = Path(tables.__file__).parent
    result = json.loads((folder / "rows.json").read_text())
    assert (folder / "parts.md").read_text() == tables.markdown(result)
