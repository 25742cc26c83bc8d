"""Exported files in lower precision: products in 8 bits, states in float32, no drift, errors that say what to do."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from live_examples import SMALL
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.contrib.int8 import quantization
from rvtssm.contrib.int8.quantization import CalibrationFrames, quantize
from rvtssm.export import export_detector
from rvtssm.export.export_detector import check_export
from rvtssm.export.exported import openvino_core, read_exported
from rvtssm.models.weight_files import check_digest
from rvtssm.readers.dat import write_dat
from rvtssm.records import WindowSettings
from rvtssm.system import extras


@pytest.fixture(scope="module")
def low_precision(exported, draw_events, made_once):
    """A folder with `exact.onnx`, and with `int8.onnx` and `int8.xml`, which `rvtssm export` made of it."""
    for package in ("nncf", "openvino", "onnxscript"):
        pytest.importorskip(package)
    _, source = exported()

    def fill(folder):
        shutil.copyfile(source / "model.onnx", folder / "exact.onnx")
        write_dat(folder / "events.dat", draw_events(10_000, duration_us=230_000), 48, 64)
        arguments = [f"checkpoint={source / 'model.ckpt'}", f"out={folder / 'int8.xml'}"]
        arguments += ["precision=int8", f"calibrate={folder / 'events.dat'}"]

        def copied(step, example, shapes, path, opset):  # since the translation by torch takes long
            shutil.copyfile(folder / "exact.onnx", path)

        def kept(path, steps):
            shown = []
            quantize(path, replace(steps, show=shown.append))
            assert any("in 20 windows" in text for text in shown)
            shutil.copyfile(path, folder / "int8.onnx")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export_detector, "_write_onnx", copied)
            patch.setattr(quantization, "quantize", kept)
            assert cli.main(["export", *arguments]) == 0

    return made_once("low_precision", fill)


@pytest.fixture(scope="module")
def low(low_precision):
    """The detector of `int8.xml`, compiled once."""
    return read_exported(low_precision / "int8.xml").detector


def of_states(names):
    return [name for name in names if name.startswith(("state_", "next_state_"))]


def test_products_have_8_bits_and_the_recurrence_has_none(low_precision):
    import onnx

    graph = onnx.load(low_precision / "int8.onnx").graph
    makers = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    rounded = []
    for node in products:
        before = [makers[name] for name in node.input[:2] if name in makers]
        before = [makers[each.input[0]] if each.op_type == "Reshape" else each for each in before]
        rounded.append({each.op_type == "DequantizeLinear" for each in before})
    assert rounded.count({True}) > 15 and len(rounded) - rounded.count({True}) == 9, "three for each of three maps"
    pending = of_states([each.name for each in graph.output])
    assert pending
    before, seen = set(), set()  # products that lead to a next state end the search
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            before.add(node.op_type)
            pending += node.input
    assert "Mul" in before and not before & {"QuantizeLinear", "DequantizeLinear"}


@torch.no_grad()
def test_carried_steps_stay_near_and_do_not_drift(low_precision, low):
    exact = read_exported(low_precision / "exact.onnx").detector
    windows = WindowSettings(50_000)
    frames = CalibrationFrames((str(low_precision / "events.dat"),), SMALL, windows, (48, 64), 8).first(8)
    generator, drift = torch.Generator().manual_seed(0), []
    states = [exact.init_state(1), low.init_state(1)]
    for i in range(200):
        counts = torch.from_numpy(frames[i % len(frames)])[None, None]
        scale = 0.1 + 1.9 * torch.rand(1, 1, generator=generator)
        found = []
        for k, detector in enumerate((exact, low)):
            predictions, states[k] = detector(counts, states[k], scale)
            found.append(detector.head.compared(predictions)[1])
        pairs = list(zip(*states, strict=True))
        drift.append(max(float((ours - theirs).norm() / theirs.norm()) for theirs, ours in pairs))
        assert (found[1] - found[0]).abs().max() < 0.1
    assert 0 < max(drift[:100]) < 0.5 and max(drift[-100:]) < 1.2 * max(drift[:100])
    assert all(leaf.dtype == torch.float32 and len(leaf.unique()) > 256 for leaf in states[1] if leaf.numel() > 1000)


@torch.no_grad()
def test_two_runtimes_compute_the_same_products(low_precision, low):
    """OpenVINO 2026.4 loses the sign of int8 after a concatenation; products of full weights overflow without VNNI."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(low_precision / "int8.onnx"))
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 4, (1, 1, 20, 48, 64), generator=generator, dtype=torch.uint8)
    state = tuple(0.3 * torch.randn(leaf.shape, generator=generator) for leaf in low.init_state(1))
    predictions, after = low(counts, state, torch.ones(1, 1))
    inputs = [counts[0], torch.ones(1), *(leaf[None] for leaf in state)]
    names = [each.name for each in session.get_inputs()]
    expected = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
    found = [predictions.rows, *(leaf[None] for leaf in after)]
    for ours, theirs in zip(found, map(torch.from_numpy, expected), strict=True):
        assert (ours - theirs).abs().mean() < 0.05 * theirs.abs().mean()


def test_a_signal_is_handled_after_two_files_were_closed_in_their_order(low_precision, run_afresh):
    """A runtime of OpenVINO that is closed frees the stack that signals are handled on."""
    program = f"""
import signal, torch
from rvtssm.export.exported import read_exported
opened = []
for _ in range(2):
    opened.append(read_exported({str(low_precision / "int8.xml")!r}).detector)
    frame = torch.zeros(1, 1, 20, 48, 64, dtype=torch.uint8)
    opened[-1](frame, opened[-1].init_state(1), torch.ones(1, 1))
while opened:
    del opened[0]
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
signal.raise_signal(signal.SIGUSR1)
"""
    assert run_afresh(program) == (0, "handled\n")


def test_files_compile_as_they_are(low_precision):
    """OpenVINO 2026.4 cannot compile products of flat rows without the number of streams."""
    for name in ("int8.xml", "int8.onnx"):
        openvino_core().compile_model(low_precision / name)


def test_the_file_says_what_was_measured(low_precision, tmp_path, printed_by):
    import openvino

    model = openvino.Core().read_model(low_precision / "int8.xml")
    measured = json.loads(model.get_rt_info(["framework", "rvtssm"]).astype(str))["measured"]
    assert measured.pop("precision") == "int8" and measured.pop("steps") == 10
    assert measured.keys() == {"boxes", "scores"} and all(0 < value < 1 for value in measured.values())
    words = ["predict", str(low_precision / "events.dat"), f"checkpoint={low_precision / 'int8.xml'}", "formats=[]"]
    assert ", precision int8 and float32, output" in " ".join(printed_by(*words, f"out={tmp_path}").split())


def test_a_flipped_bit_of_both_files_of_an_xml_is_found(low_precision, tmp_path):
    for suffix in (".xml", ".bin"):
        shutil.copyfile(low_precision / f"int8{suffix}", tmp_path / f"a{suffix}")
    assert check_digest(tmp_path / "a.xml")
    for path in (tmp_path / "a.xml", tmp_path / "a.bin"):
        whole = path.read_bytes()
        for position in range(100, len(whole), len(whole) // 5):
            flipped = bytearray(whole)
            flipped[position] ^= 4
            path.write_bytes(flipped)
            with raises("file.damaged", "a.xml"):
                read_exported(tmp_path / "a.xml")
        path.write_bytes(whole)
    (tmp_path / "a.bin").unlink()
    with raises("file.missing"):
        read_exported(tmp_path / "a.xml")


@pytest.mark.parametrize(
    ("name", "precision", "missing", "key"),
    [
        ("a.ckpt", "int8", None, "setting.conflict"),
        ("a.xml", "bf16", None, "setting.conflict"),
        ("a.xml", "float32", "openvino", "install.extra"),
        ("a.onnx", "int8", "nncf", "install.extra"),
    ],
)
def test_what_cannot_be_exported_is_refused(monkeypatch, name, precision, missing, key):
    monkeypatch.setattr(extras, "find_spec", lambda package: None if package == missing else package)
    with raises(key):
        check_export(name, precision)


def test_calibration_frames_are_those_of_both_rates_and_fit_the_file(draw_events, tmp_path):
    events, windows = draw_events(20_000), WindowSettings(50_000)
    write_dat(tmp_path / "events.dat", events, 48, 64)
    frames = CalibrationFrames((str(tmp_path / "events.dat"),), SMALL, windows, (48, 64), 6)
    (slow, scale), (fast, small_scale) = frames
    assert (scale, small_scale) == (1, 0.1) and slow.shape == fast.shape == (3, 20, 48, 64)
    assert slow.sum() > 0 and not np.array_equal(slow, fast)
    assert [frame.tolist() for frame in frames.first(4)] == [*slow.tolist(), fast[0].tolist()]
    with raises("setting.conflict", "events.dat"):
        replace(frames, frame_hw=(48, 32)).check()


@pytest.mark.parametrize(
    ("num_windows", "num_paths", "each", "read"),
    [(200, 3, 34, [0, 1, 2]), (200, 100, 20, [0, 20, 40, 60, 80]), (4, 3, 2, [0])],
)
def test_a_recording_gives_enough_windows_for_a_state(draw_events, monkeypatch, num_windows, num_paths, each, read):
    opened = []

    def first(path, seconds, usual_hw):
        opened.append(int(path))
        return draw_events(5_000, duration_us=round(1e6 * seconds)), (48, 64), path

    monkeypatch.setattr(quantization, "first_events", first)
    paths = tuple(map(str, range(num_paths)))
    frames = CalibrationFrames(paths, SMALL, WindowSettings(50_000), (48, 64), num_windows)
    assert {len(windows) for windows, _ in frames} == {each} and opened == read
    assert frames.check() == [2 * each] * len(read)


@pytest.mark.parametrize("where", ["-", "tcp://localhost:1", "camera:"])
def test_a_stream_is_no_recording_to_calibrate_on(where):
    with raises("source.kind"):
        CalibrationFrames((where,), SMALL, WindowSettings(50_000), (48, 64), 4).check()
