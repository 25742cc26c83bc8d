"""`benchmarks.whole` with a toy: rows compare what they say, exponents are slopes, bars have the measured values."""

import json
import sys
import threading
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import pytest
import torch

from benchmarks import streaming
from benchmarks.training import step
from benchmarks.whole import __main__ as command
from benchmarks.whole import detectors, growth
from rvtssm.datasets import DATASETS
from rvtssm.models.model_config import MODEL_SIZES, ModelConfig

TOY = ModelConfig(embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(streaming, "SIZES", {"base": TOY, "tiny": TOY})
    monkeypatch.setattr(streaming, "SPEC", replace(streaming.SPEC, height=32, width=32))
    monkeypatch.setattr(streaming, "build_checkpoint", lambda size, layer, spec=None: built(size, layer, spec))
    monkeypatch.setattr(detectors, "keep_freed_memory", lambda: None)


original = streaming.build_checkpoint


def built(size, layer, spec):
    return original(size, layer, spec or streaming.SPEC)


@torch.no_grad()
def test_the_textbook_form_finds_the_same():
    shape = step.Shape(1, 7, "cpu", 64, 96, TOY)
    batch = step.make_batch(shape)
    ours, textbook = (step.build_training(name, shape) for name in ("s5+", "s5+textbook"))
    for layer in ours.layers:
        layer.ssm.bandlimit = 0.0  # the textbook form has none
    for training in (ours, textbook):
        training.detector.eval()
    torch.testing.assert_close(textbook.predict(batch).rows, ours.predict(batch).rows, rtol=1e-3, atol=1e-3)


def test_the_command_measures_every_part(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "measure_limits", lambda: detectors.measure_limits(16))
    monkeypatch.setattr(growth, "measure_peak", lambda axis, value: round(1000 * value))
    monkeypatch.setattr(growth, "measure_processes", lambda count, rounds: (0.5 * count, 100 * count**2))
    monkeypatch.setattr(
        growth, "CURVES", {axis: replace(curve, values=SMALL[axis]) for axis, curve in growth.CURVES.items()}
    )
    command.main(["--json", str(tmp_path / "found.json"), "--quick", "--sizes", "base", "--forms", "eager,eager bf16"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["limit"]) == {"float32", "bf16", "int8"} and min(found["limit"].values()) > 0
    for part in ("forward", "training"):
        assert [row["form"] for row in found[part]] == ["float32", "bf16", "textbook layer", "RVT's loop"]
        for row in found[part]:
            assert row["times_float32"] == pytest.approx(found[part][0]["ms"] / row["ms"])
            assert row["times_RVT's loop"] == pytest.approx(found[part][3]["ms"] / row["ms"])
    for row, precision in zip(found["live"], ("float32", "bf16"), strict=True):
        assert row["share"] == pytest.approx(row["gflop"] / row["median_ms"] * 1000 / found["limit"][precision])
    assert [curve["axis"] for curve in found["growth"]] == [*growth.CURVES, "processes"]
    assert all(min(curve["ms"]) > 0 and len(curve["ms"]) == len(curve["values"]) for curve in found["growth"])
    assert [curve["memory_exponent"] for curve in found["growth"]] == pytest.approx([1, 1, 1, 1, 2])
    assert [bar["bar"].partition(":")[0] for bar in found["bars"]] == [
        "training of base, bf16 against float32",
        "forward of base, bf16 against float32",
    ]
    assert "growth" in capsys.readouterr().out


SMALL = {"lines": (32, 64), "cameras": (1, 2), "steps of a chunk": (6, 12), "Mev/s": (0.01, 0.1)}


def test_products_of_a_step_are_counted(monkeypatch):
    """A multiplication with its addition counts as two: 2.58 GFLOP for tiny at 240 x 304, by a count of its layers."""
    monkeypatch.setattr(streaming, "SIZES", MODEL_SIZES)
    monkeypatch.setattr(streaming, "SPEC", DATASETS["gen1"])
    assert detectors.gflop_of_step("tiny") == pytest.approx(2.58, rel=0.03)


def test_bars_have_the_best_form():
    live = [
        {"size": "tiny", "form": "eager", "times_eager": 1.0},
        {"size": "tiny", "form": "openvino bf16", "times_eager": 3.5},
        {"size": "base", "form": "openvino bf16", "times_eager": 9.0},
    ]
    bars = detectors.met_bars({"live": live})
    assert [bar["met"] for bar in bars] == [True]
    assert bars[0]["bar"] == "live step of tiny, openvino bf16 against eager in float32: 3.50"


@pytest.mark.parametrize("power", [-1, 0, 0.5, 2])
def test_an_exponent_is_a_slope_of_logarithms(power):
    assert growth.exponent((1, 2, 7), [3 * value**power for value in (1, 2, 7)]) == pytest.approx(power, abs=1e-9)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_step_at_once_and_their_memory_is_added(monkeypatch):
    threads = SimpleNamespace(Pool=ThreadPool, Barrier=threading.Barrier)  # in the place of processes
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: threads)
    one, two = (growth.measure_processes(count, 3) for count in (1, 2))
    assert one[0] > 0 and two[0] > 0
    assert 1.8 * one[1] < two[1] < 2.2 * one[1]
