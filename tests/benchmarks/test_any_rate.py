"""The rate study at toy size: every condition has its rows, what is complete is not done again."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from benchmarks.any_rate import study, tables
from benchmarks.any_rate.__main__ import main
from rvtssm.cli import compose

TOY = (
    "dataset.height=64",
    "dataset.width=96",
    "synthetic.height=64",
    "synthetic.width=96",
    "synthetic.num_train=2",
    "synthetic.num_val=1",
    "synthetic.num_test=1",
    "synthetic.duration_s=1.2",
    "synthetic.workers=1",
    "preprocess.workers=1",
    "model.embed_dim=8",
    "model.head_dim=8",
    "model.num_blocks=[0,0,0,1]",
    "model.fpn_blocks=0",
    "temporal.num_blocks=1",
    "sampling.batch_size=2",
    "sampling.chunk_length=2",
    "training.accelerator=cpu",
    "training.progress=false",
    "postprocess.min_score=0",
)


def test_one_variant_through_every_condition(tmp_path, monkeypatch, capsys):
    for module in (study, tables):  # one other rate, because all are evaluated alike
        monkeypatch.setattr(module, "HZ", (20, 40))
    path = tmp_path / "rates.json"
    command = [*TOY, "--json", str(path), "--folder", str(tmp_path), "--only", "s5", "--seeds", "1", "--steps", "1"]
    assert main(command) == 0
    result = json.loads(path.read_text())
    (training,) = result["trainings"]
    assert (training["variant"], training["seed"]) == ("s5", 0) and training["parameters"] > 1000
    assert len(result["rows"]) == 1 + len(study.CONDITIONS) * (len(study.HZ) - 1)
    assert len({(row["window"], row["is_rescaled"], row["hz"]) for row in result["rows"]}) == len(result["rows"])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert path.with_suffix(".md").read_text().count("| s5 | 1 |") == len(study.CONDITIONS)

    monkeypatch.setattr(study, "train", None)  # nothing is left to be trained, nor scored
    monkeypatch.setattr(study, "evaluate", None)
    assert main(command) == 0
    assert json.loads(path.read_text()) == result
    assert main([*command[:-1], "2"]) == 2  # another budget
    assert "another --json" in capsys.readouterr().err


def test_what_has_no_time_step_is_scored_once_per_window():
    assert study.conditions_of("lstm") == [("shrink", True), ("slide", True)]
    assert study.conditions_of("s5-rates") == list(study.CONDITIONS)
    rows = [
        {"variant": "lstm", "seed": 0, "window": window, "is_rescaled": True, "hz": hz, "AP": 0.2 if hz == 20 else ap}
        for window, ap in (("shrink", 0.1), ("slide", 0.15))
        for hz in study.HZ
        if hz != 20 or window == "shrink"
    ]
    for window, is_rescaled in study.CONDITIONS:
        curve = tables.curves({"rows": rows}, window, is_rescaled)["lstm"]
        assert curve == {20: [20.0], **{hz: [10.0 if window == "shrink" else 15.0] for hz in study.HZ[1:]}}


def test_every_variant_composes(tmp_path):
    for variant in study.VARIANTS:
        config = compose(study.Study(tmp_path).words(variant, 3))
        assert config.seed == 3 and config.training.steps == 1600
    assert config.temporal.name == "lstm"


def test_the_table_gives_mean_spread_and_drop():
    rows = [
        {"variant": "a", "seed": seed, "window": "shrink", "is_rescaled": True, "hz": hz, "AP": ap - 0.1 * seed}
        for seed in (0, 1)
        for hz, ap in zip(study.HZ, (0.5, 0.4, 0.4, 0.3, 0.3), strict=True)
    ]
    text = tables.markdown({"rows": rows})
    assert "| a | 2 | 45.0 ± 7.1 | 35.0 ± 7.1 | 35.0 ± 7.1 | 25.0 ± 7.1 | 25.0 ± 7.1 | 15.0 ± 0.0 |" in text
    assert text.count("| a |") == 1
    assert tables.curves({"rows": rows[:4]}, "shrink", True) == {}
    assert math.isclose(tables.curves({"rows": rows}, "shrink", True)["a"][200.0][1], 20.0)


def test_the_tables_of_the_pages_are_those_of_the_rows():
    """`rates.md` as a whole; on the pages for users, the rescaled rows of some detectors, window by window."""
    folder = Path(study.__file__).parent
    text = tables.markdown(json.loads((folder / "rates.json").read_text()))
    assert (folder / "rates.md").read_text() == text
    pages = {"docs/any_rate.md": ("s5", "s4d", "lstm"), "README.md": ("s5", "lstm")}
    for window, name in itertools.product(("slide", "shrink"), pages):
        page = (folder.parents[1] / name).read_text()
        rows = text.split(f"Window `{window}`, time step rescaled:")[1].split("Window")[0].splitlines()
        for variant in pages[name]:
            (row,) = (row for row in rows if row.startswith(f"| {variant} |"))
            layer, seeds, *cells = row.strip("| ").split(" | ")
            assert "| " + " | ".join([layer, seeds, window, *cells]) + " |" in page


def test_an_unknown_variant_is_named():
    with pytest.raises(SystemExit):
        main(["--json", "x.json", "--folder", "x", "--only", "s6"])


def test_no_training_depends_on_the_processor(tmp_path):
    for variant in study.VARIANTS:
        assert compose(study.Study(tmp_path).words(variant, 0)).training.precision == "32-true"
