"""`benchmarks.streaming` with a toy: every form runs, and rows compare what they say."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import streaming
from benchmarks.training import step
from rvtssm.cli.composition import compose
from rvtssm.models import ModelConfig

GATED = ("temporal.discretization=bilinear", "temporal.block=gated")
TOY = ModelConfig(embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0)  # few parts are exported faster


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(streaming, "SIZES", {"toy": TOY})
    monkeypatch.setattr(streaming, "SPEC", replace(streaming.SPEC, height=32, width=32))
    monkeypatch.setattr(streaming, "build_checkpoint", lambda size, layer: built(size, layer, streaming.SPEC))


built = streaming.build_checkpoint


@pytest.mark.parametrize("layers", [streaming.LAYERS, step.LAYERS], ids=["streaming", "training"])
def test_layers_of_the_benchmarks_are_those_of_the_configuration(layers):
    for name in ("s5", "selective_s5", "s7", "lstm"):
        assert layers[name] == compose([f"temporal={name}"]).temporal
    assert layers["selective_s5-gated"] == compose(["temporal=selective_s5", *GATED]).temporal


@torch.no_grad()
def test_a_form_takes_the_same_steps_and_is_made_once(exported, tmp_path, monkeypatch):
    checkpoint, folder = exported()

    def instead(given, path, precision, calibration):
        assert given is checkpoint and precision == "float32"
        shutil.copyfile(folder / "model.onnx", path)

    monkeypatch.setattr(streaming, "export_detector", instead)
    monkeypatch.setattr(streaming, "build_checkpoint", lambda size, layer: checkpoint)
    hist = torch.randint(0, 11, (1, 20, 48, 64), dtype=torch.uint8)
    eager = streaming.step_of(checkpoint)
    wanted = [eager(hist) for _ in range(3)]
    assert not torch.equal(wanted[0], wanted[1])  # the state goes on
    said = []
    for _ in range(2):
        step = streaming.step_of(streaming.read_form("toy", "s5", "onnxruntime", tmp_path, "cpu", said.append))
        for one in wanted:
            torch.testing.assert_close(step(hist), one, rtol=1e-3, atol=1e-3)
    assert said == ["exporting toy_s5_32x32.onnx"]


def test_ratios_are_medians_of_pairs():
    taken = {("s5", "eager"): [1.0, 2.0, 3.0], ("s5", "onnx"): [1.0, 1.0, 1.0]}
    taken |= {("lstm", "eager"): [4.0, 4.0, 3.0], ("lstm", "onnx"): [2.0, 3.0, 1.0]}
    rows = {(row.layer, row.form): row for row in streaming.compared("toy", taken)}
    assert rows["s5", "onnx"].times_eager == 2 and rows["s5", "eager"].times_eager == 1
    assert rows["s5", "eager"].times_lstm == 2 and rows["s5", "onnx"].times_lstm == 2
    assert rows["lstm", "onnx"].times_lstm == 1 and rows["lstm", "eager"].median_ms == 4000
    assert rows["s5", "eager"].p95_ms == pytest.approx(2900)
    del taken["lstm", "onnx"]
    assert {(row.layer, row.form): row.times_lstm for row in streaming.compared("toy", taken)}["s5", "onnx"] is None


@pytest.mark.parametrize(
    ("p95_ms", "found"),
    [
        (lambda hz: 20.0, (45, 20.0)),  # a window must be ready before the next one ends
        (lambda hz: 10 if hz == 20 else 24 + hz / 20, (35, 25.75)),  # windows take longer at higher rates
        (lambda hz: 300.0, (0, 300.0)),
    ],
)
def test_a_rate_is_sustained_if_its_windows_are_shorter_than_its_stride(p95_ms, found):
    assert streaming.sustained_hz(p95_ms) == found


@pytest.mark.gpu
def test_a_cuda_graph_takes_the_same_steps():
    hist = torch.randint(0, 11, (1, 20, 32, 32), dtype=torch.uint8, device="cuda")
    for layer in streaming.LAYERS:
        eager = streaming.step_of(streaming.read_form("toy", layer, "eager", Path(), "cuda", print))
        graph = streaming.CudaGraphStep(streaming.build_checkpoint("toy", layer))
        for _ in range(40):  # what the state was before, on both sides, fades
            wanted, found = eager(hist), graph(hist).clone()
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
