"""Law: the boxes in a file are those that `predict` selects from the same predictions, whatever size and limits."""

import json
import shutil

import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.export.export_detector import METADATA_KEY, describe, to_openvino
from rvtssm.export.exported import largest_difference, openvino_core, read_exported
from rvtssm.export.graphs import append_suppression, check_suppression, suppression_graph
from rvtssm.models import PostprocessConfig
from rvtssm.models.postprocess import postprocess, to_sensor

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

FOUND = ["found_boxes", "found_scores", "found_classes", "found_streams"]
NUM_FRAMES, NUM_PLACES, NUM_CLASSES = 3, 301, 3


def crowded(height, width):
    """Rows (B, A, 5 + K) whose boxes overlap much, and reach past the edges; one frame has none above any limit."""
    generator = torch.Generator().manual_seed(height)
    rows = torch.randn(NUM_FRAMES, NUM_PLACES, 5 + NUM_CLASSES, generator=generator)
    size = torch.tensor([width, height])
    rows[..., :2] = (1.3 * torch.rand(NUM_FRAMES, NUM_PLACES, 2, generator=generator) - 0.15) * size
    rows[..., 2:4] = (0.2 + 0.3 * torch.rand(NUM_FRAMES, NUM_PLACES, 2, generator=generator)) * size
    rows[1, :, 4] = -100
    return rows


def assert_selects_the_same(rows, found, frame_hw, config):
    boxes, scores, classes, streams = found
    assert (np.diff(streams) >= 0).all() and len(boxes) == len(scores) == len(classes) == len(streams)
    num_found = []
    for number, frame in enumerate(postprocess(rows, [0] * len(rows), config)):
        wanted = to_sensor(frame, *frame_hw, 1)
        here = np.flatnonzero(streams == number)
        order = here[np.argsort(-scores[here], kind="stable")]
        np.testing.assert_array_equal(boxes[order], wanted.xyxy)
        np.testing.assert_array_equal(classes[order], wanted.class_id)
        np.testing.assert_allclose(scores[order], wanted.score, rtol=0, atol=1e-6)
        num_found.append(len(wanted))
    return num_found


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("frame_hw", [(37, 53), (240, 304), (721, 1279)])
@pytest.mark.parametrize(
    "config",
    [
        PostprocessConfig(min_score=0),
        PostprocessConfig(min_score=0.3, max_detections=5),
        PostprocessConfig(min_score=0.1, nms_iou=0.7, score="class_only"),
        PostprocessConfig(min_score=1),
    ],
)
def test_a_graph_selects_the_boxes_of_predict(opset, frame_hw, config):
    rows = crowded(*frame_hw)
    model = suppression_graph(rows.shape[1:], frame_hw, config, opset).SerializeToString()
    found = onnxruntime.InferenceSession(model).run(FOUND, {"rows": rows.numpy()})
    num_found = assert_selects_the_same(rows, found, frame_hw, config)
    assert (sum(num_found) > 5) == (config.min_score < 1) and max(num_found) < NUM_PLACES
    pytest.importorskip("openvino")
    results = openvino_core().compile_model(openvino_core().read_model(model), "CPU")({"rows": rows.numpy()})
    assert_selects_the_same(rows, [results[name] for name in FOUND], frame_hw, config)


def test_a_file_has_boxes_beside_its_predictions(exported, tmp_path):
    """In both runtimes; read by this package, it is the detector that it was."""
    pytest.importorskip("openvino")
    checkpoint, folder = exported()
    path = tmp_path / "model.onnx"
    shutil.copyfile(folder / "model.onnx", path)
    detector, config = read_exported(path).detector, PostprocessConfig(min_score=0.005)
    frame_hw = detector.frame_hw
    (described,) = (each.value for each in onnx.load(path).metadata_props if each.key == METADATA_KEY)
    append_suppression(path, detector.empty().rows.shape[1:], frame_hw, config)
    describe(path, json.loads(described))
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 9, (2, 20, *frame_hw), generator=generator).to(torch.uint8)
    inputs = {"hist": counts.numpy(), "step_scale": np.ones(2, np.float32)}
    session = onnxruntime.InferenceSession(str(path))
    states = [value.name for value in session.get_inputs()[2:]]
    leaves = detector.init_state(2)
    inputs |= {name: leaf.unflatten(0, (2, -1)).numpy() for name, leaf in zip(states, leaves, strict=True)}
    rows, *found = session.run(["rows", *FOUND], inputs)
    assert sum(assert_selects_the_same(torch.from_numpy(rows), found, frame_hw, config)) > 2
    results = openvino_core().compile_model(to_openvino(path), "CPU")(inputs)
    rows, *found = (results[name] for name in ("rows", *FOUND))
    assert sum(assert_selects_the_same(torch.from_numpy(rows), found, frame_hw, config)) > 2
    assert largest_difference(checkpoint, read_exported(path), 3) < (1e-4, 1e-4)


def test_heads_and_rules_without_such_a_graph_are_refused(live_checkpoint):
    with raises("setting.conflict", "max_detections"):
        check_suppression(live_checkpoint(), PostprocessConfig(score="class_only", max_detections=3))
    other = {"head": "rtdetr", "head_options": {"queries": 4, "layers": 1}}
    with raises("export.unsupported", "rtdetr"):
        check_suppression(live_checkpoint(**other), PostprocessConfig())


def test_the_command_writes_them_for_its_limits(exported, tmp_path, monkeypatch):
    """The translation by torch takes long, so that it is that of another test."""
    _, folder = exported()
    monkeypatch.setattr(
        "rvtssm.export.export_detector._write_onnx",
        lambda step, example, shapes, path, opset: shutil.copyfile(folder / "model.onnx", path),
    )
    out = tmp_path / "a.onnx"
    assert cli.main(["export", f"checkpoint={folder / 'model.ckpt'}", f"out={out}", "nms=true", "min_score=0.25"]) == 0
    session = onnxruntime.InferenceSession(str(out))
    assert [value.name for value in session.get_outputs()][-4:] == FOUND
    assert '"min_score": 0.25' in session.get_modelmeta().custom_metadata_map["rvtssm"]
