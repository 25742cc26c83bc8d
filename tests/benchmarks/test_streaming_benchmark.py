"""`benchmarks.streaming` with a toy: every form runs, rows compare what they say, the file is readable."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import streaming
from rvtssm.models.model_config import ModelConfig

TOY = ModelConfig(embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0)  # few parts are exported faster


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(streaming, "SIZES", {"toy": TOY})
    monkeypatch.setattr(streaming, "SPEC", replace(streaming.SPEC, height=32, width=32))
    monkeypatch.setattr(streaming, "build_checkpoint", lambda size, layer: built(size, layer, streaming.SPEC))
    monkeypatch.setattr(streaming, "ROUNDS", 3)
    monkeypatch.setattr(streaming, "measure_memory", lambda steps: measured((3, 6)))


built = streaming.build_checkpoint


def measured(steps):
    early, late = 100 << 20, 101 << 20
    return {"steps": steps[0], "bytes": early, "later_steps": steps[1], "later_bytes": late, "growth": late / early - 1}


@torch.no_grad()
def test_a_form_takes_the_same_steps_and_is_made_once(exported, tmp_path, monkeypatch):
    checkpoint, folder = exported(".onnx")

    def instead(given, path):
        assert given is checkpoint
        shutil.copyfile(folder / "model.onnx", path)

    monkeypatch.setattr(streaming, "export_detector", instead)
    hist = torch.randint(0, 11, (1, 20, 48, 64), dtype=torch.uint8)
    eager = streaming.eager_step(checkpoint)
    wanted = [eager(hist) for _ in range(3)]
    assert not torch.equal(wanted[0], wanted[1])  # the state goes on
    said = []
    for _ in range(2):
        step = streaming.exported_step(checkpoint, tmp_path / "a.onnx", said.append, "float32")
        for one in wanted:
            torch.testing.assert_close(step(hist), one, rtol=1e-3, atol=1e-3)
    assert said == ["exporting a.onnx"]


def test_ratios_are_medians_of_pairs():
    taken = {("s5", "eager"): [1.0, 2.0, 3.0], ("s5", "onnx"): [1.0, 1.0, 1.0]}
    taken |= {("lstm", "eager"): [4.0, 4.0, 3.0], ("lstm", "onnx"): [2.0, 3.0, 1.0]}
    rows = {(row.layer, row.form): row for row in streaming.compared("toy", taken)}
    assert rows["s5", "onnx"].times_eager == 2 and rows["s5", "eager"].times_eager == 1
    assert rows["s5", "eager"].times_lstm == 2 and rows["s5", "onnx"].times_lstm == 2
    assert rows["lstm", "onnx"].times_lstm == 1 and rows["lstm", "eager"].median_ms == 4
    assert rows["s5", "eager"].p95_ms == pytest.approx(2.9)


def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
    files, precisions = [], []

    def instead(checkpoint, path, say, precision):
        files.append(path.name)
        precisions.append(precision)
        return streaming.eager_step(checkpoint)

    monkeypatch.setattr(streaming, "exported_step", instead)
    streaming.main(["--json", str(tmp_path / "found.json"), "--models", str(tmp_path)])
    found = json.loads((tmp_path / "found.json").read_text())
    assert {"device", "threads", "torch", "python", "commit", "rows", "memory"} == set(found)
    assert [(row["layer"], row["form"]) for row in found["rows"]] == [
        (layer, form) for layer in ("s5", "lstm") for form in ("eager", "eager bf16", "compiled", "onnx", "onnx bf16")
    ]
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in found["rows"])
    assert found["memory"]["growth"] == pytest.approx(0.01)
    assert files[:3] == ["toy_s5_32x32.aot.pt2", "toy_s5_32x32.onnx", "toy_s5_32x32.onnx"] and len(files) == 6
    assert precisions == 2 * ["float32", "float32", "bf16"]
    assert "resident after 3 steps 100.0 MiB" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_looked_at_twice(monkeypatch):
    monkeypatch.setattr(streaming, "build_checkpoint", built)
    early, late = streaming.stream_and_look((20, 60), 1, "toy")
    assert 50 << 20 < early <= 1.2 * late and late < 1.2 * early


@pytest.mark.gpu
def test_a_cuda_graph_takes_the_same_steps():
    hist = torch.randint(0, 11, (1, 20, 32, 32), dtype=torch.uint8, device="cuda")
    for layer in streaming.LAYERS:
        eager = streaming.eager_step(streaming.build_checkpoint("toy", layer), "cuda")
        graph = streaming.CudaGraphStep(streaming.build_checkpoint("toy", layer))
        for _ in range(40):  # what the state was before, on both sides, fades
            wanted, found = eager(hist), graph(hist).clone()
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (["--threads", "0"], "--threads 0"),
        (["--sizes", "huge"], "--sizes huge: choose from toy"),
        (["--forms", "onnx"], "--forms needs eager"),
        (["--forms", "eager,engine"], "--forms engine: choose from eager, eager bf16, compiled, onnx, onnx bf16"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(wrong, answer, capsys):
    with pytest.raises(SystemExit) as refused:
        streaming.main(wrong)
    assert refused.value.code == 2
    assert answer in capsys.readouterr().err.splitlines()[-1]
