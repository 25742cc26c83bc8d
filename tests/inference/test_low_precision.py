"""Detection in bfloat16: near float32, for any frame size, and not further from it after many steps."""

from __future__ import annotations

import pytest
import torch

from rvtssm.cli import compose
from rvtssm.inference.frame_size import detector_for_frame
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.low_precision import set_precision
from rvtssm.models.streams import Streams
from rvtssm.run.weights import read_weights


@pytest.fixture
def weights_path(live_checkpoint, tmp_path):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "weights.ckpt", checkpoint.detector, checkpoint)
    return tmp_path / "weights.ckpt"


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("bf16", torch.bfloat16)])
def test_the_key_decides(weights_path, precision, dtype):
    checkpoint = read_weights(compose([f"checkpoint={weights_path}", f"precision={precision}"]))
    other_size = detector_for_frame(checkpoint, 64, 96)
    for detector in (checkpoint.detector, other_size):
        assert detector.product_dtype is dtype
        assert next(detector.backbone.parameters()).dtype == (dtype or torch.float32)


def test_an_exported_file_has_its_own_precision():
    with pytest.raises(ValueError, match=r"precision=bf16: model\.onnx has the precision it was exported in"):
        read_weights(compose(["checkpoint=model.onnx", "precision=bf16"]))


def test_an_unknown_precision_is_refused(live_checkpoint):
    with pytest.raises(ValueError, match="precision='int4'; choose from float32, bf16"):
        set_precision(live_checkpoint().detector, "int4")


def test_a_carried_state_does_not_drift(live_checkpoint):
    exact, low = live_checkpoint(), live_checkpoint()
    set_precision(low.detector, "bf16")
    generator = torch.Generator().manual_seed(0)
    streams = [Streams(checkpoint.detector, checkpoint.windows.stride_us) for checkpoint in (exact, low)]
    differences = []
    for step in range(120):
        counts = torch.randint(0, 4, (1, 1, 20, 48, 64), generator=generator, dtype=torch.uint8)
        found = [
            stream.push(counts, torch.full((1, 1), 50_000.0), torch.tensor([[0, 0]]), [0], [step == 0]).rows
            for stream in streams
        ]
        differences.append(float((found[1] - found[0]).abs().max() / found[0].abs().max()))
    early, late = torch.tensor(differences).split(60)
    assert 0 < early.max() < 0.05
    assert late.median() < 1.5 * early.median()
