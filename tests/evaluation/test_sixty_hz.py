"""Labels at 60 Hz, whose times are 16,666 or 16,667 us apart: everything that detects takes one and the same step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_examples import boxes_of

from rvtssm.cli import main as cli
from rvtssm.datasets import DATASETS, DataConfig, DatasetConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.evaluation import evaluating
from rvtssm.events.labels import write_boxes
from rvtssm.events.windows import WindowsConfig
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.models.postprocess import to_sensor
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections
from rvtssm.training.module import DetectionModule, ModuleSettings

SPEC = replace(DATASETS["synthetic"], height=48, width=64, skip_us=0)
LABELS_US = np.rint(np.arange(1, 41) * 1e6 / 60).astype(np.int64)
CHUNK = 8  # steps that are computed together, so that sums have nearly the same order everywhere
LIKELY = PostprocessConfig(min_score=0.3)
ByTime = dict[int, Detections]


@pytest.fixture(scope="module")
def raw(tmp_path_factory, draw_events) -> Path:
    """A recording that begins at 0 with a label at every 60th of a second, in the validation and the test split."""
    folder = tmp_path_factory.mktemp("raw")
    events = draw_events(8_000, 0, int(LABELS_US[-1]))
    boxes = boxes_of(*((t_us, 2, 3, 20, 25) for t_us in LABELS_US), still_us=-1)
    for split in ("val", "test"):
        (folder / split).mkdir()
        write_dat(folder / split / "a_td.dat", events, SPEC.height, SPEC.width)
        write_boxes(folder / split / "a_bbox.npy", boxes)
    return folder


@pytest.fixture
def step_scales(monkeypatch) -> list[object]:
    """What detectors are given or prepare for their steps."""
    seen: list[object] = []
    prepare = Detector.prepare

    def noted(self: Detector, scale: Any) -> Any:
        seen.append(scale)
        return prepare(self, scale)

    monkeypatch.setattr(Detector, "prepare", noted)
    return seen


def predicted(weights: LoadedCheckpoint, raw: Path, folder: Path, hz: float) -> ByTime:
    found: ByTime = {}
    predict_recording(
        weights,
        raw / "test/a_td.dat",
        folder / "predicted",
        DetectionConfig(hz, "shrink", downsample=1),
        PredictConfig(formats=[], windows_per_call=CHUNK),
        postprocess=LIKELY,
        on_window=lambda result: found.update({result.t_us: result.detections}),
        progress=False,
    )
    return found


def evaluated(raw: Path, folder: Path, monkeypatch, hz: float) -> ByTime:
    found: ByTime = {}
    score_rate = evaluating.score_rate

    def keep(*arguments, **options):
        scored = score_rate(*arguments, **options)
        found.update({frame.t_us: frame for frame in scored.recordings[0].detections})
        return scored

    monkeypatch.setattr(evaluating, "score_rate", keep)
    words = [f"{folder / 'model.ckpt'}", f"dataset.raw_dir={raw}", f"out={folder / 'scores'}", f"hz=[{hz}]"]
    alike = ["window=shrink", f"data.eval_chunk_length={CHUNK}", "data.workers=0", "postprocess.min_score=0.3"]
    assert cli.main(["evaluate", *words, *alike]) == 0
    return found


def validated(weights: LoadedCheckpoint, raw: Path) -> ByTime:
    where = DatasetConfig("synthetic", str(raw), height=SPEC.height, width=SPEC.width, source="raw")
    loading = DataConfig(workers=0, eval_chunk_length=CHUNK)
    data = SequenceDataModule(where, data=loading, windows=weights.windows)
    settings = ModuleSettings(SPEC, weights.windows.stride_us, postprocess=LIKELY)
    module = DetectionModule(weights.detector, settings, {}, {}, [])
    module.eval()
    for index, batch in enumerate(data.val_dataloader()):
        module.validation_step(batch, index)
    return {t_us: frame for (_, t_us), frame in module.detections.items()}


@pytest.mark.parametrize("stride_ms", [16.667, 50])
def test_labels_at_60_hz_get_the_same_detections_everywhere(
    stride_ms, raw, live_checkpoint, tmp_path, monkeypatch, step_scales
):
    loaded = live_checkpoint(num_blocks=(0, 0, 0, 0))
    weights = replace(loaded, spec=SPEC, windows=WindowsConfig(stride_ms=stride_ms).settings)
    write_checkpoint(tmp_path / "model.ckpt", weights.detector, weights)
    by_prediction = predicted(weights, raw, tmp_path, 60)
    found = [evaluated(raw, tmp_path, monkeypatch, 60)]
    if stride_ms != 50:
        found.append(validated(weights, raw))
    assert {*step_scales} == {(1e6 / 60) / weights.windows.stride_us}, "a number, and the same one at every step"
    assert sorted(by_prediction) == LABELS_US.tolist()
    for by_time in found:
        assert sum(len(frame) for frame in by_time.values()) > 20
        for t_us, frame in by_time.items():
            inside, other = to_sensor(frame, SPEC.height, SPEC.width, 1), by_prediction[t_us]
            np.testing.assert_allclose(inside.score, other.score, rtol=1e-6)
            np.testing.assert_array_equal(inside.class_id, other.class_id)
            np.testing.assert_allclose(inside.xyxy, other.xyxy, atol=1e-4)
