"""The benchmark of step rules at toy size: what its rules are, and that a score is computed once."""

import json
from dataclasses import replace

import numpy as np
import torch

from benchmarks import step_rule
from rvtssm.datasets import DATASETS
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.readers.dat import write_dat
from rvtssm.records import WindowSettings
from rvtssm.ssm.discretize import DISCRETIZATIONS

SPEC = replace(DATASETS["synthetic"], height=48, width=64)


def test_an_impulse_decays_with_the_stride_and_enters_as_in_training():
    lambda_, dt = torch.complex(-torch.rand(5) - 0.1, torch.randn(5)), torch.rand(5) + 0.1
    for name in ("zoh", "bilinear"):
        held = DISCRETIZATIONS[name]
        impulse = step_rule.impulse_of(held)
        torch.testing.assert_close(impulse(lambda_, dt, 1.0), held(lambda_, dt, 1.0))
        torch.testing.assert_close(impulse(lambda_, dt, 0.1), (held(lambda_, dt, 0.1)[0], held(lambda_, dt, 1.0)[1]))
    torch.testing.assert_close(
        step_rule.impulse_of(DISCRETIZATIONS["zoh"])(lambda_, dt, 0.3), DISCRETIZATIONS["async"](lambda_, dt, 0.3)
    )


def test_the_release_takes_short_windows_at_the_stride_of_training():
    found = list(step_rule.conditions(WindowSettings(), [20.0, 80.0]))
    assert [name for name, *_ in found].count("20 Hz") == 1 and len(found) == 1 + 2 * 3 + 4
    released = [settings for name, _, settings in found if name.startswith("released")]
    assert [(one.stride_us, one.length_us) for one in released] == [(50_000, 1000 * ms) for ms in (25, 12, 10, 5)]


def test_scores_are_computed_once_and_leave_the_rule_of_the_weights(
    live_checkpoint, draw_events, tmp_path, monkeypatch, capsys
):
    (tmp_path / "test").mkdir()
    write_dat(tmp_path / "test/a_td.dat", draw_events(4_000, 0, 800_000), SPEC.height, SPEC.width)
    boxes = np.zeros(4, BOX_DTYPE)
    boxes["t"], boxes["x"], boxes["y"], boxes["w"], boxes["h"] = (600_000, 650_000, 700_000, 750_000), 2, 3, 20, 25
    write_boxes(tmp_path / "test/a_bbox.npy", boxes)
    weights = replace(live_checkpoint("selective_s5"), spec=SPEC)
    write_checkpoint(tmp_path / "a.ckpt", weights.detector, weights)
    command = [f"mine={tmp_path / 'a.ckpt'}", "--raw", str(tmp_path), "--json", str(tmp_path / "found.json")]
    command += ["--hz", "20,40", "--precision", "float32"]
    step_rule.main(command)
    rows = json.loads((tmp_path / "found.json").read_text())["scores"]["mine"]
    assert {rule: len(row) for rule, row in rows.items()} == {"held": 3, "impulse": 2, "as trained": 6}
    monkeypatch.setattr(step_rule, "score", None)
    step_rule.main(command)
    assert capsys.readouterr().out.count("impulse") == 2
    before = step_rule.set_rule(weights, "impulse")
    assert before and all(layer.discretization == f"impulse of {own}" for layer, own in before)
