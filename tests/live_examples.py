"""A small detector with scores that mean something, exported files of it, and random events, for live detection."""

import contextlib
import io
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from event_examples import SPEC, random_events

from rvtssm.cli import main as cli
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.records import Events, WindowSettings
from rvtssm.ssm import TemporalConfig

SMALL = replace(
    SPEC,
    name="small",
    label_interval_us=50_000,
    min_side_px=2,
    min_diagonal_px=4,
    prepare_min_side_px=2,
    prepare_min_diagonal_px=4,
)
# attention in one stage and no bottlenecks in the neck: fewer parts run, are traced and are compiled faster
FEW_PARTS = {"embed_dim": 8, "head_dim": 4, "num_blocks": (1, 0, 0, 0), "fpn_blocks": 0, "layer_scale": 1.0}


@pytest.fixture(scope="session")
def live_checkpoint():
    """A function: temporal layer, its direction, representation, model settings -> weights whose state matters,
    scores differ."""

    def build(
        temporal: str = "s5", representation: str = "histogram", bidirectional: bool = False, **model
    ) -> LoadedCheckpoint:
        torch.manual_seed(1)
        config = ModelConfig(size="custom", **{**FEW_PARTS, **model})
        layer = TemporalConfig(name=temporal, dt_min=0.2, dt_max=1.0, bidirectional=bidirectional)
        meta = CheckpointMeta(SMALL, config, layer, WindowSettings(50_000, None, "exact", 10, 10, representation))
        detector = meta.build().eval()
        with torch.no_grad():
            for name, parameter in detector.head.named_parameters():
                if parameter.ndim == 1 and parameter.numel() <= 2 and name.endswith("bias"):
                    parameter.zero_()
                elif name.endswith("weight") and parameter.ndim == 4:
                    parameter.mul_(4)
        return meta.with_detector(detector)

    return build


@pytest.fixture(scope="session")
def weights(live_checkpoint, tmp_path_factory) -> Path:
    """A file with the small detector."""
    checkpoint, path = live_checkpoint(), tmp_path_factory.mktemp("weights") / "small.ckpt"
    write_checkpoint(path, checkpoint.detector, checkpoint)
    return path


@pytest.fixture(scope="session")
def exported(live_checkpoint, made_once):
    """A function without arguments -> weights, and a folder with `model.ckpt`, the `model.onnx` that `rvtssm export`
    made of it, and what the command printed in `told.txt`."""

    def export() -> tuple[LoadedCheckpoint, Path]:
        pytest.importorskip("onnxscript")
        weights = live_checkpoint()

        def fill(folder: Path) -> None:
            write_checkpoint(folder / "model.ckpt", weights.detector, weights)
            with contextlib.redirect_stdout(io.StringIO()) as told:
                arguments = [f"checkpoint={folder / 'model.ckpt'}", f"out={folder / 'model.onnx'}"]
                assert cli.main(["export", *arguments]) == 0
            (folder / "told.txt").write_text(told.getvalue())

        return weights, made_once("exported", fill)

    return export


@pytest.fixture(scope="session")
def draw_events():
    """A function: number, first and last time, seed -> random events on the small sensor."""

    def draw(n: int = 6_000, start_us: int = 7_000_000, duration_us: int = 430_000, seed: int = 5) -> Events:
        return random_events(n, seed, duration_us, start_us, fills_span=True)

    return draw


def stream_head(height: int, width: int) -> bytes:
    """Return the first bytes of a stream, see `rvtssm.detection.packets`."""
    return b"RVTE" + struct.pack("<II", height, width)


class Dribble(io.BytesIO):
    """A stream of which at most `size` bytes arrive at a time."""

    def __init__(self, content: bytes, size: int = 100) -> None:
        super().__init__(content)
        self._size = size

    def read1(self, size: int = -1, /) -> bytes:
        return super().read1(min(self._size, size))


def packet_bytes(events: Events, until_us: int | None = None) -> bytes:
    """Return the bytes of a packet; no event before `until_us` follows, None says nothing."""
    columns = zip((events.t, events.x, events.y, events.p), ("<i8", "<u2", "<u2", "u1"), strict=True)
    head = struct.pack("<Iq", len(events), -1 if until_us is None else until_us)
    return head + b"".join(array.astype(dtype).tobytes() for array, dtype in columns)
