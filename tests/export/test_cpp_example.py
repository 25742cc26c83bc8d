"""The C++ program in `examples/export` is compiled against onnxruntime and finds the boxes that Python finds.

It needs the headers of onnxruntime, which its wheel does not hold: those of a release, in /usr/include or in the folder
ONNXRUNTIME_INCLUDE. The library is that of the wheel.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from event_examples import random_events

from rvtssm.detection.engine import StreamDetector
from rvtssm.export.exported import read_exported
from rvtssm.models.model_config import PostprocessConfig

SOURCE = Path(__file__).parents[2] / "examples" / "export" / "detect.cpp"
INCLUDES = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include", "/usr/include")
MIN_SCORE = 0.002  # the weights have not learned


@pytest.fixture(scope="module")
def detect(tmp_path_factory) -> Path:
    """The compiled program."""
    onnxruntime = pytest.importorskip("onnxruntime")
    compiler = shutil.which("g++") or shutil.which("clang++")
    folders = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), *INCLUDES]
    include = next((folder for folder in folders if (Path(folder) / "onnxruntime_c_api.h").is_file()), None)
    if compiler is None or include is None:
        pytest.skip("needs a C++ compiler and onnxruntime_c_api.h (set ONNXRUNTIME_INCLUDE to its folder)")
    folder = tmp_path_factory.mktemp("cpp")
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*.*")
    (folder / "libonnxruntime.so.1").symlink_to(library)  # the name under which programs look for it
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE), f"-I{include}"]
    built = [str(folder / "libonnxruntime.so.1"), f"-Wl,-rpath,{folder}", "-o", str(folder / "detect")]
    subprocess.run([*command, *built], check=True)
    return folder / "detect"


def test_the_boxes_are_those_of_python_over_carried_windows(detect, exported):
    _, folder = exported()
    events = random_events(30_000, 5, 430_000, 7_000_000, fills_span=True)
    lines = [f"{t} {x} {y} {p}" for t, x, y, p in zip(events.t, events.x, events.y, events.p, strict=True)]
    command = [detect, folder / "model.onnx", str(MIN_SCORE)]
    printed = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=True).stdout
    rows = np.array([line.split() for line in printed.splitlines()], np.float64).reshape(-1, 7)
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
