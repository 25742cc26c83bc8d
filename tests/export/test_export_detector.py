"""An exported step is the step of the detector, carried on at changing rates, for any number of streams."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.predictor import Predictor, load
from rvtssm.export import checked_export
from rvtssm.export import export_detector as exporting
from rvtssm.export.export_detector import (
    METADATA_KEY,
    check_export,
    describe,
    export_detector,
    files_of,
    move_file,
    read_description,
    to_openvino,
)
from rvtssm.export.exported import ExportedDetector, largest_difference, read_exported
from rvtssm.export.graphs import DetectorStep
from rvtssm.models import PostprocessConfig, detector
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint, detector_for_frame
from rvtssm.models.weight_files import check_digest
from rvtssm.models.yolox import YoloxPredictions
from rvtssm.records import Events, WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system import extras
from rvtssm.system.output_folder import result_file
from rvtssm.system.user_error import UserError
from rvtssm.testing import as_tuple, random_state
from tests.killed import killed_at_each_call

BACKBONE = {"backbone": "timm", "timm_name": "test_convnext2"}
OTHER_PARTS = BACKBONE | {"head": "rtdetr", "head_options": {"queries": 12, "layers": 1}}
OTHER_LAYERS = ("s4", "selective_s5", "s7", "s4d")


@pytest.fixture(scope="module")
def other_exported(live_checkpoint, made_once) -> tuple[LoadedCheckpoint, Path]:
    """Weights for surfaces with OTHER_PARTS, whose maps have one of OTHER_LAYERS each; and the file made of them."""
    pytest.importorskip("onnxscript")
    every = [live_checkpoint(name, "surfaces", **OTHER_PARTS) for name in OTHER_LAYERS]
    layers = every[0].detector.backbone.temporal
    for stride, checkpoint in zip(layers, every, strict=True):
        layers[stride] = checkpoint.detector.backbone.temporal[stride]
    folder = made_once("other_exported", lambda folder: export_detector(every[0], folder / "model.onnx"))
    return every[0], folder / "model.onnx"


def assert_equal_steps(checkpoint, exported):
    for num_streams, carried in ((1, 60), (3, 5)):
        boxes, scores = largest_difference(checkpoint, exported, carried, num_streams)
        assert 0 < boxes <= 1e-4 and scores <= 1e-4


def test_an_exported_file_equals_pytorch(exported):
    checkpoint, folder = exported()
    assert {path.name for path in folder.glob("[!.]*")} == {"model.ckpt", "model.onnx", "told.txt"}
    assert "frames of 64 x 48" in (folder / "told.txt").read_text()
    assert_equal_steps(checkpoint, read_exported(folder / "model.onnx"))


def test_other_parts_and_layers_equal_pytorch(other_exported):
    checkpoint, path = other_exported
    read = read_exported(path)
    assert_equal_steps(checkpoint, read)
    empty = read.detector.empty()._asdict()
    shapes = {name: field.shape for name, field in empty.items() if field is not None}
    assert shapes == {"boxes": (0, 12, 4), "logits": (0, 12, 2)}, "a head with queries is described"


def test_an_exported_head_with_queries_finds_what_its_weights_do(other_exported):
    """Every score is that of the weights, but one: of two places with nearly the same score, rounding decides."""
    checkpoint, path = other_exported
    t = np.arange(0, 200_000, 40)
    height, width = checkpoint.detector.frame_hw
    events = Events(
        t, (t // 40 % width).astype(np.uint16), (t // 40 % height).astype(np.uint16), (t % 2).astype(np.uint8)
    )
    of_weights, of_file = (
        predictor.predict(events, height=height, width=width, hz=100, downsample=1, min_score=0.001)
        for predictor in (Predictor(checkpoint), load(path))
    )
    assert len(of_weights) == len(of_file) > 10 and sum(map(len, of_weights)) > 10
    num_other = 0
    for wanted, found in zip(of_weights, of_file, strict=True):
        assert len(found) == len(wanted)
        num_other += int((~np.isclose(wanted.score[:, None], found.score, rtol=0, atol=1e-4).any(axis=0)).sum())
    assert num_other <= 1


@pytest.mark.parametrize("name", [name for name in TEMPORAL_LAYERS if name not in ("s5", *OTHER_LAYERS)])
def test_a_layer_that_none_of_these_files_has_equals_pytorch(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = build_temporal_layer(TemporalConfig(name), 4).eval()
    torch.manual_seed(0)
    x, scale, state = torch.randn(1, 6, 4), torch.rand(1, 2) + 0.1, random_state(layer, 6)
    step = layer.real_step()
    torch.onnx.export(step, (x, state, scale), tmp_path / "layer.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    given = dict(zip([each.name for each in session.get_inputs()], (x, *as_tuple(state), scale), strict=False))
    y, *after = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    wanted, wanted_after = layer(x, state, scale)
    for ours, theirs in zip((y, *after), (wanted, *as_tuple(wanted_after)), strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), atol=1e-5)


def test_a_flipped_bit_of_an_exported_file_is_found(exported, tmp_path):
    _, folder = exported()
    path, whole = tmp_path / "model.onnx", (folder / "model.onnx").read_bytes()
    path.write_bytes(whole)
    assert check_digest(path)
    for position in range(100, len(whole), len(whole) // 20):
        flipped = bytearray(whole)
        flipped[position] ^= 4
        path.write_bytes(flipped)
        with raises("file.damaged", "model.onnx"):
            read_exported(path)
    path.write_bytes(re.sub(rb"sha256:[0-9a-f]{6}", b"no digest now", whole))  # as a file of another program
    assert not check_digest(path)
    read_exported(path)
    path.write_bytes(path.read_bytes().replace(b'"yolox"', b'"yoLox"'))
    with raises("setting.no_such_part", "model.onnx"):
        read_exported(path)


def test_a_file_says_what_it_is(exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    checkpoint, folder = exported()
    path = folder / "model.onnx"
    session = onnxruntime.InferenceSession(str(path))
    inputs = {each.name: (each.type, each.shape) for each in session.get_inputs()}
    assert inputs["hist"] == ("tensor(uint8)", ["batch", 20, 48, 64])
    assert inputs["step_scale"] == ("tensor(float)", ["batch"])
    described = json.loads(session.get_modelmeta().custom_metadata_map[METADATA_KEY])
    assert described["checkpoint"]["spec"]["class_names"] == ["car", "pedestrian"]
    assert described["checkpoint"]["windows"]["stride_us"] == 50_000
    assert set(described["state"]) == set(inputs) - {"hist", "step_scale"}
    assert described["checkpoint"]["raw_dir"] is None  # where data lie here is nobody's business elsewhere
    read = read_exported(path)
    assert read.spec == checkpoint.spec and read.windows == checkpoint.windows


def test_weights_are_exported_alone(exported, tmp_path, monkeypatch):
    checkpoint, folder = exported()
    path = tmp_path / "model.safetensors"
    monkeypatch.setattr(detector, "_bf16_is_faster", lambda: True)
    recipe = "experiment=demo"  # whose settings say nothing of exports
    assert cli.main(["export", recipe, f"checkpoint={folder / 'model.ckpt'}", f"out={path}"]) == 0
    found = read_checkpoint(path)
    assert found.spec == checkpoint.spec and found.raw_dir is None
    weights = found.detector.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in checkpoint.detector.state_dict().items())


def test_weights_alone_have_no_size_of_frames(tmp_path, capsys):
    assert cli.main(["export", "street-tiny", f"out={tmp_path / 'model.safetensors'}", "height=96"]) == 2
    assert "model.safetensors; it holds weights, which take frames of any size" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_exported_detector_streams(exported, draw_events):
    """At a rate that changes, and in the same words as PyTorch."""
    checkpoint, folder = exported()
    events = draw_events(5_000, start_us=0, duration_us=600_000)
    found = []
    for weights in (checkpoint, read_exported(folder / "model.onnx")):
        live = StreamDetector(weights, 48, 64, downsample=1, start_us=0, config=PostprocessConfig(max_detections=5))
        windows = live.push(events.between(0, 300_000))
        live.windows = WindowSettings(5_000)
        found.append(windows + live.push(events.between(300_000, 600_000)))
    assert len(found[0]) == len(found[1]) > 50
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.score, b.score, atol=1e-4)


def test_a_difference_that_is_no_number_is_none(live_checkpoint):
    checkpoint = live_checkpoint()
    exported = live_checkpoint()
    forward = exported.detector.forward
    calls = []

    def broken_at_first(*arguments):
        (rows,), state = forward(*arguments)
        calls.append(1)
        return YoloxPredictions(rows * (float("nan") if len(calls) == 1 else 1)), state

    exported.detector.forward = broken_at_first
    assert all(math.isnan(value) for value in largest_difference(checkpoint, exported, 3))


@pytest.fixture
def refused(live_checkpoint, tmp_path, capsys, monkeypatch):
    """A function: name of a file to export to -> the line that says why it cannot be. Nothing is really traced."""
    weights = live_checkpoint()
    meta = CheckpointMeta(weights.spec, weights.model_config, weights.temporal_config, weights.windows)
    write_checkpoint(tmp_path / "model.ckpt", weights.detector, meta)
    monkeypatch.setattr(
        exporting,
        "export_detector",
        lambda checkpoint, path, *options: path.write_bytes(b"model") and {"frame_hw": [48, 64]},
    )

    def run(name):
        assert cli.main(["export", f"checkpoint={tmp_path / 'model.ckpt'}", f"out={tmp_path / name}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.ckpt"]
        return line

    return run


def test_a_file_that_is_not_the_weights_does_not_stay(refused, monkeypatch):
    monkeypatch.setattr(checked_export, "read_exported", lambda path: None)
    for difference in (0.1, float("nan")):
        monkeypatch.setattr(checked_export, "largest_difference", lambda *_, found=difference, **options: (1e-6, found))
        assert "differs from the weights" in refused("model.onnx")


def test_an_earlier_file_stays_until_another_has_been_checked(refused, tmp_path, monkeypatch):
    earlier = tmp_path / "earlier" / "model.onnx"
    with result_file(earlier) as staged:
        staged.write_bytes(b"good")

    def unreadable(path):
        assert path.read_bytes() == b"model"
        raise UserError("file.unreadable", "cannot be read")

    monkeypatch.setattr(checked_export, "read_exported", unreadable)
    assert "cannot be read" in refused("earlier/model.onnx")
    assert earlier.read_bytes() == b"good" and list(earlier.parent.glob("[!.]*")) == [earlier]


def test_a_place_that_cannot_be_written_is_one_line(refused, tmp_path, monkeypatch):
    (tmp_path / "folder.onnx").mkdir()
    assert "folder.onnx: it is a folder; the exported model is a file" in refused("folder.onnx")
    full = os.open("/dev/full", os.O_WRONLY)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda path, data: os.write(full, data))
        assert "No space left on device" in refused("full.onnx")
    os.close(full)


def test_other_frames_need_another_export(exported, tmp_path, monkeypatch, capsys):
    _, folder = exported()
    with pytest.raises(
        ValueError, match=r"exported for frames of 64 x 48 pixels, but frames of 96 x 32 are needed; export it again"
    ):
        detector_for_frame(read_exported(folder / "model.onnx"), 32, 96)
    traced = []
    program = SimpleNamespace(save=lambda path, **options: shutil.copy(folder / "model.onnx", path))
    monkeypatch.setattr("torch.onnx.export", lambda step, example, **options: traced.append(example) or program)
    monkeypatch.setattr(checked_export, "largest_difference", lambda *_, **options: (0, 0))
    arguments = [f"checkpoint={folder / 'model.ckpt'}", f"out={tmp_path / 'model.onnx'}", "height=32", "width=96"]
    assert cli.main(["export", *arguments]) == 0 and "frames of 96 x 32" in capsys.readouterr().out
    ((hist, *_),) = traced
    assert hist.shape == (2, 20, 32, 96)


def test_what_cannot_be_exported_is_refused(live_checkpoint, tmp_path):
    with raises("layer.lacks"):
        DetectorStep(live_checkpoint(bidirectional=True).detector)
    with raises("export.unsupported"):
        export_detector(live_checkpoint(memory="chunk", memory_chunk=3), tmp_path / "a.onnx")
    exported = replace(live_checkpoint(), detector=torch.nn.Identity())  # as what `read_exported` gives: no `Detector`
    with pytest.raises(ValueError, match="is an exported file, which cannot be exported again; give the checkpoint"):
        export_detector(exported, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_an_unknown_precision_of_an_exported_file_is_refused():
    with raises("setting.choice", "precision"):
        read_exported("model.onnx", precision="bfloat16")


@pytest.mark.parametrize(
    ("name", "precision", "key"),
    [("a.onnx", "fp16", "choice"), ("a.safetensors", "fp16", "choice"), ("a.safetensors", "int8", "conflict")],
)
def test_a_precision_that_a_file_cannot_have_is_refused_in_python_too(tmp_path, name, precision, key):
    with raises(f"setting.{key}", "precision"):
        checked_export.export_detector("street-tiny", tmp_path / name, precision=precision)
    assert not list(tmp_path.iterdir())


class _Command:
    """Creates the file `ran` when it is unpickled."""

    def __reduce__(self):
        return open, ("ran", "w")


def test_a_program_is_never_opened(tmp_path, capsys):
    """Earlier versions wrote such files. Reading one can run any code."""
    name = "a.pt2"
    torch.save(_Command(), tmp_path / name)
    (tmp_path / "x.dat").write_bytes(b"")
    for verb in ("predict", "evaluate", "audit", "info", "export"):
        out = tmp_path / ("b.onnx" if verb == "export" else "out")
        recording = [] if verb in ("evaluate", "info", "export") else [f"recording={tmp_path / 'x.dat'}"]
        where = [] if verb == "info" else [f"out={out}"]
        assert cli.main([verb, f"checkpoint={tmp_path / name}", *recording, *where]) == 2, verb
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}: programs of PyTorch are neither written nor read" in line
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_export_get_one_line(tmp_path, capsys):
    path = tmp_path / "a.onnx"
    recording = tmp_path / "a.dat"
    for content in (None, b"", b"not a model" * 100):
        if content is not None:
            path.write_bytes(content)
        arguments = [f"checkpoint={path}", f"recording={recording}", f"out={tmp_path / 'out'}"]
        assert cli.main(["predict", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["s5", "lstm"])
def test_a_file_says_whether_its_layers_have_a_step_to_rescale(live_checkpoint, name):
    checkpoint = live_checkpoint(name)
    described = exporting._describe(checkpoint, DetectorStep(checkpoint.detector))
    earlier = {key: value for key, value in described.items() if key != "has_step_to_rescale"}
    for description in (described, earlier):
        file = ExportedDetector(lambda inputs: inputs, checkpoint, description, "model.onnx")
        assert file.has_step_to_rescale == checkpoint.detector.has_step_to_rescale == (name == "s5")


def test_a_file_that_says_too_little_is_refused(live_checkpoint):
    checkpoint = live_checkpoint()
    described = {name: getattr(checkpoint, name) for name in CheckpointMeta.__dataclass_fields__}
    whole = {"checkpoint": CheckpointMeta(**described).to_dict(), "frame_hw": [48, 64], "state": {}, "predictions": {}}
    assert read_description(json.dumps(whole), "a.onnx")[0].spec == checkpoint.spec
    less = [{key: value for key, value in whole.items() if key != name} for name in whole]
    for content in (*less, {**whole, "checkpoint": {"spec": 3}}, [], None):
        with raises("file.content"):
            read_description(json.dumps(content), "a.onnx")


def test_an_xml_in_float32_equals_pytorch_and_is_described_as_the_page_says(exported, tmp_path, monkeypatch):
    for package in ("openvino", "onnx"):
        pytest.importorskip(package)
    import onnx

    checkpoint, folder = exported()
    shutil.copyfile(folder / "model.onnx", tmp_path / "model.onnx")
    path = to_openvino(tmp_path / "model.onnx")
    (text,) = (each.value for each in onnx.load(tmp_path / "model.onnx").metadata_props if each.key == METADATA_KEY)
    describe(path, json.loads(text))
    boxes, scores = largest_difference(checkpoint, read_exported(path), 10)
    assert 0 < boxes < 1e-3 and scores < 1e-3
    page = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
    (example,) = (block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "openvino" in block)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example, names)
    assert names["about"] == json.loads(text)


def place(folder: Path, name: str, text: str) -> None:
    """Move files with this text to a name as an export does."""
    made = folder / text / name
    made.parent.mkdir(parents=True, exist_ok=True)
    for path in files_of(made):
        path.write_text(text)
    move_file(made, folder / name)


def test_the_two_files_of_an_xml_are_replaced_together(tmp_path):
    """A kill at any moment leaves no .xml beside weights of another one."""
    first, second = (partial(place, name="a.xml", text=text) for text in ("first", "second"))
    for folder in killed_at_each_call(tmp_path, first, second):
        assert len({path.read_text() for path in folder.glob("a.*")}) <= 1
        place(folder, "a.xml", "third")
        assert (folder / "a.xml").read_text() == (folder / "a.bin").read_text() == "third"


@pytest.mark.parametrize(("name", "other"), [("a.onnx", "a.onnx"), ("a.xml", "a.xml"), ("a.xml", "a.bin")])
def test_an_export_replaces_only_what_an_export_has_written(tmp_path, monkeypatch, name, other):
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    for text in ("first", "second"):
        check_export(tmp_path / name, "float32")
        place(tmp_path, name, text)
    (tmp_path / other).write_text("of someone else")
    with raises("file.exists", other):
        check_export(tmp_path / name, "float32")  # before the work
    with raises("file.exists", other):
        place(tmp_path, name, "third")  # the file came meanwhile
    assert (tmp_path / other).read_text() == "of someone else"


def test_weights_replace_only_what_an_export_has_written(live_checkpoint, tmp_path):
    path = tmp_path / "a.safetensors"
    for _ in range(2):
        checked_export.write_weights(live_checkpoint(), path, "float32")
    path.write_text("of someone else")
    with raises("file.exists", path.name):
        checked_export.write_weights(live_checkpoint(), path, "float32")
    assert path.read_text() == "of someone else"


def test_an_earlier_opset_has_no_operator_for_gelu_and_gives_the_same_results(live_checkpoint, tmp_path):
    """`export_checked` compares the file with PyTorch before it keeps it."""
    onnx = pytest.importorskip("onnx")
    checked_export.export_checked(live_checkpoint(), tmp_path / "model.onnx", (48, 64), "float32", opset=17)
    model = onnx.load(tmp_path / "model.onnx")
    assert [(part.domain, part.version) for part in model.opset_import] == [("", 17)]
    assert "Gelu" not in {node.op_type for node in model.graph.node}
