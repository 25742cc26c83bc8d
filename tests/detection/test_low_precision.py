"""Detection in bfloat16: near float32, for any frame size, and not further from it after many steps."""

import sys
from importlib.util import find_spec

import pytest
import torch
from user_errors import raises

from rvtssm.cli.chosen_weights import read_weights
from rvtssm.cli.main import compose
from rvtssm.export.exported import read_exported
from rvtssm.models import PRECISIONS
from rvtssm.models.checkpoint_meta import detector_for_frame
from rvtssm.models.detector import set_precision
from rvtssm.models.streams import Streams


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("bf16", torch.bfloat16)])
def test_the_key_decides(weights, precision, dtype):
    checkpoint = read_weights(compose([f"checkpoint={weights}", f"precision={precision}"]))
    other_size = detector_for_frame(checkpoint, 64, 96)
    for detector in (checkpoint.detector, other_size):
        assert detector.product_dtype is dtype
        assert next(detector.backbone.parameters()).dtype == (dtype or torch.float32)


def test_an_onnx_file_in_bf16_names_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    keys = compose([f"checkpoint={tmp_path / 'model.onnx'}", "precision=bf16"])
    if find_spec("openvino") is not None:
        with raises("file.damaged"):
            read_weights(keys)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with raises("install.extra", "openvino"):
        read_weights(keys)


@torch.no_grad()
def test_an_onnx_file_in_bf16_is_near_and_does_not_drift(exported):
    """Carried over many steps at changing rates, for one stream and for three; the states stay in float32."""
    pytest.importorskip("openvino")
    _, folder = exported()
    exact, low = (read_exported(folder / "model.onnx", precision=name).detector for name in PRECISIONS)
    generator = torch.Generator().manual_seed(0)
    for num_streams, num_steps in ((3, 2), (1, 24)):
        states, drift = [exact.init_state(num_streams), low.init_state(num_streams)], []
        for step in range(num_steps):
            counts = torch.randint(0, 4, (1, num_streams, 20, 48, 64), generator=generator, dtype=torch.uint8)
            scale = 0.1 + 1.9 * torch.rand(1, num_streams, generator=generator)
            (wanted, states[0]), (found, states[1]) = (
                detector(counts, state, scale) for detector, state in zip((exact, low), states, strict=True)
            )
            boxes, scores = zip(low.head.compared(wanted), low.head.compared(found), strict=True)
            assert (boxes[1] - boxes[0]).abs().max() < 0.05 * boxes[0].abs().max()
            assert (scores[1] - scores[0]).abs().max() < 0.05
            pairs = list(zip(*states, strict=True))
            drift.append(max(float((ours - theirs).norm() / theirs.norm()) for theirs, ours in pairs))
            if num_streams == 3 and step == 0:
                assert any((ours != ours.bfloat16().float()).any() for _, ours in pairs), "states are not rounded"
    early, late = torch.tensor(drift).split(12)
    assert 0 < early.max() < 0.05 and late.max() < 1.5 * early.max()


def test_a_carried_state_does_not_drift(live_checkpoint):
    exact, low = live_checkpoint(), live_checkpoint()
    set_precision(low.detector, "bf16")
    generator = torch.Generator().manual_seed(0)
    streams = [Streams(checkpoint.detector, checkpoint.windows.stride_us) for checkpoint in (exact, low)]
    differences = []
    for step in range(40):
        counts = torch.randint(0, 4, (1, 1, 20, 48, 64), generator=generator, dtype=torch.uint8)
        found = [
            stream.push(counts, torch.full((1, 1), 50_000.0), torch.tensor([[0, 0]]), [0], [step == 0]).rows
            for stream in streams
        ]
        differences.append(float((found[1] - found[0]).abs().max() / found[0].abs().max()))
    early, late = torch.tensor(differences).split(20)
    assert 0 < early.max() < 0.05
    assert late.median() < 1.5 * early.median()
