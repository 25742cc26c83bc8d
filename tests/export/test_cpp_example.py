"""The programs in `examples/export`, in C++ with OpenVINO's wheel and in Python, find the boxes of this package."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from event_examples import random_events

from rvtssm.detection.engine import StreamDetector
from rvtssm.export.exported import read_exported
from rvtssm.models import PostprocessConfig

SOURCE = Path(__file__).parents[2] / "examples" / "export" / "detect.cpp"
MIN_SCORE = 0.002  # the weights have not learned


@pytest.fixture(scope="module")
def detect(tmp_path_factory) -> Path:
    """The compiled program."""
    openvino = pytest.importorskip("openvino")
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program, wheel = tmp_path_factory.mktemp("cpp") / "detect", Path(openvino.__path__[0])
    command: list[str | Path] = [compiler, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", SOURCE]
    command += ["-isystem", wheel / "include"]
    (library,) = (wheel / "libs").glob("libopenvino.so.*")
    subprocess.run([*command, library, f"-Wl,-rpath,{wheel / 'libs'}", "-o", program], check=True)
    return program


def rows_of(command: list, lines: list[str], folder: Path) -> np.ndarray:
    """What a program prints for events, (N, 7)."""
    text = "\n".join(lines)
    printed = subprocess.run(command, input=text, text=True, capture_output=True, check=True, cwd=folder).stdout
    return np.array([line.split() for line in printed.splitlines()], np.float64).reshape(-1, 7)


def test_the_boxes_are_those_of_python_over_carried_windows(detect, exported):
    _, folder = exported()
    events = random_events(30_000, 5, 430_000, 7_000_000, fills_span=True)
    columns = zip(events.t, events.x, events.y, 2 * events.p.astype(int) - 1, strict=True)  # darker is -1
    lines = [f"{t} {x} {y} {p}" for t, x, y, p in columns]
    lines[1:1] = [f"{events.t[0]} 64 47 1", f"{events.t[0]} 9999999 0 1"]  # beside the frame, where nothing is counted
    rows = rows_of([detect, folder / "model.onnx", str(MIN_SCORE)], lines, folder)
    config = PostprocessConfig(min_score=MIN_SCORE)
    detector = StreamDetector(read_exported(folder / "model.onnx"), 48, 64, config=config, skip="never")
    num_boxes = 0
    for result in detector.push(events):
        mine = rows[rows[:, 0] == result.t_us]
        assert mine[:, 1].tolist() == result.class_id.tolist()
        np.testing.assert_allclose(mine[:, 2], result.score, atol=1e-5)
        np.testing.assert_allclose(mine[:, 3:], result.xyxy, atol=2e-2)
        num_boxes += len(result)
    assert num_boxes == len(rows) > 20
    text = SOURCE.with_suffix(".py").read_text()
    assert "import rvtssm" not in text and "from rvtssm" not in text
    alike = rows_of([sys.executable, "-c", text.replace("20, 0.3", f"20, {MIN_SCORE}")], lines, folder)
    np.testing.assert_allclose(alike, rows, atol=2e-2)
