"""The study of backbones and heads at toy size: every combination builds, its row is complete and is not done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_any_rate import TOY

from benchmarks.any_rate.study import HZ, Study
from benchmarks.parts import study, tables
from benchmarks.parts.__main__ import main
from rvtssm.cli import compose
from rvtssm.datasets import build_spec
from rvtssm.models.checkpoint import CheckpointMeta
from rvtssm.run.checks import check


def make_row(name: str, *, ap: float = 0.3) -> dict:
    return {
        "name": name,
        "overrides": list(study.COMBINATIONS[name]),
        "parameters": 1_234_567,
        "train_seconds": 99.6,
        "AP": {f"{hz:g}": ap if hz == HZ[0] else ap - 0.01 for hz in HZ},
        "AP50": {f"{hz:g}": 2 * ap for hz in HZ},
        "live_ms": 12.34,
        **{"cpu": "a processor", "cpu_extensions": ["AVX2"], "cores": 2, "torch": "2.0", "commit": "abc"},
    }


@pytest.mark.parametrize("name", study.COMBINATIONS)
def test_every_combination_builds_the_parts_that_it_names(name, tmp_path):
    config = compose(Study(tmp_path, variants=study.COMBINATIONS, precision=study.PRECISION).words(name, study.SEED))
    check(config)
    assert "_".join((config.model.backbone, config.model.head)) == name
    assert (config.training.steps, config.training.precision) == (1600, "bf16-mixed")
    with torch.device("meta"):
        meta = CheckpointMeta(build_spec(config.dataset), config.model, config.temporal, config.windows.settings)
        assert list(meta.build().backbone.temporal_layers()) == [4, 8, 16, 32]


def test_one_combination_from_data_to_row(tmp_path, monkeypatch, capsys):
    path = tmp_path / "rows.json"
    overrides = (study.TIMM[0], "model.timm_name=lcnet_050", study.RTDETR[0], "model.rtdetr_queries=5")
    monkeypatch.setitem(study.COMBINATIONS, "timm_rtdetr", overrides)
    monkeypatch.setattr(study, "HZ", (20, 40))
    monkeypatch.setattr(study, "LIVE_STEPS", 9)
    command = [*TOY, "--json", str(path), "--folder", str(tmp_path), "--only", "timm_rtdetr", "--steps", "2"]
    assert main(command) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["name"], row["overrides"]) == ("timm_rtdetr", list(overrides))
    assert row["parameters"] > 1000 and row["live_ms"] > 0 and row["train_seconds"] > 0
    assert list(row["AP"]) == list(row["AP50"]) == ["20", "40"]
    assert {"cpu", "cpu_extensions", "torch", "commit"} <= set(row)
    assert "| `timm_rtdetr` |" in path.with_name("parts.md").read_text()

    result = json.loads(path.read_text())
    monkeypatch.setattr(study, "train", None)  # nothing is left to be trained, nor scored
    monkeypatch.setattr(study, "evaluate", None)
    assert main(command) == 0
    assert json.loads(path.read_text()) == result
    del result["rows"][0]["live_ms"]
    path.write_text(json.dumps(result))
    assert main(command) == 0
    assert json.loads(path.read_text())["rows"][0]["live_ms"] > 0
    assert main([*command[:-1], "3"]) == 2  # another budget
    assert "another --json" in capsys.readouterr().err


def test_rows_stand_in_the_order_of_the_combinations_whichever_came_first(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "make_data", lambda study: None)
    monkeypatch.setattr(study, "measured", lambda study, name: {"live_ms": 1.0})
    whole = Study(tmp_path, variants=study.COMBINATIONS)
    for name in ("timm_rtdetr", "rvt_yolox", "timm_yolox"):
        result = study.run(whole, [name], tmp_path / "rows.json", {})
    assert [row["name"] for row in result["rows"]] == ["rvt_yolox", "timm_yolox", "timm_rtdetr"]


def test_the_table_has_the_rows_and_only_those():
    rows = [make_row("rvt_yolox"), make_row("timm_rtdetr", ap=0.1)]
    text = tables.markdown({"settings": {"steps": 7, "overrides": ["seed=3"], "precision": "bf16-mixed"}, "rows": rows})
    assert "rows.json --steps 7 seed=3\n" in text
    assert "| `rvt_yolox` | 1.23 M | 30.0 | 60.0 | 1.0 | 12.3 |" in text
    assert "| `timm_rtdetr` | 1.23 M | 10.0 | 20.0 | 1.0 | 12.3 |" in text
    assert "`rvt_yolox` is the demo as it is." in text and "model.rtdetr_queries=30" in text
    assert "timm_yolox" not in text and "rvt_rtdetr" not in text


def test_the_committed_table_is_that_of_the_committed_rows():
    folder = Path(study.__file__).parent
    if (folder / "parts.md").exists() or (folder / "rows.json").exists():
        assert (folder / "parts.md").read_text() == tables.markdown(json.loads((folder / "rows.json").read_text()))


def test_an_unknown_combination_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--json", "x.json", "--folder", "x", "--only", "rvt_ssd"])
    assert "rvt_ssd; choose from rvt_yolox," in capsys.readouterr().err
