"""The programs on the pages for users do what they say."""

import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from event_examples import random_events

from rvtssm.cli.main import main
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.windows import free_grid
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.postprocess import postprocess, to_sensor
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events, Windows, WindowSettings
from rvtssm.records.settings import REDUCTIONS
from rvtssm.ssm import S5, TemporalConfig

ROOT = Path(__file__).parents[2]
SAMPLE = "outputs/sample/test/test_0000_td.dat"  # what the programs open, written by the command before them
ALONE = (ROOT / "examples" / "export" / "detect.py").read_text()  # runs an exported file without this package
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def program(word: str) -> str:
    """The only block of Python that has this word; several pages may show it."""
    blocks = {block for page in PAGES for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)}
    (found,) = [block for block in blocks if word in block]
    return found


@pytest.mark.parametrize(("hz", "window", "n"), [(200, "slide", 1), (80, "shrink", 3), (8, "slide", 2)])
def test_a_program_without_this_package_runs_an_exported_file(exported, monkeypatch, hz, window, n):
    pytest.importorskip("onnxruntime")
    checkpoint, folder = exported()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names: dict = {}
    exec(ALONE, names)
    assert names["session"].get_session_options().intra_op_num_threads == 1 and names["n"] == 1
    names["n"] = n
    size_hw = 48 * n + n - 1, 64 * n + n - 1  # the last row and column of the sensor belong to no square
    events = random_events(20_000 * n**2, 5, 130_000 if hz > 8 else 430_000, 7_000_000, size_hw)
    state = None
    first_us, last_us = int(events.t[0]), int(events.t[-1])
    grid = free_grid(first_us, last_us, checkpoint.windows.at_rate(hz, window))
    names["begin"](first_us)
    for (start_us, end_us), dt_us in zip(grid.bounds_us.tolist(), grid.dt_us.tolist(), strict=True):
        part = events.between(start_us, end_us)
        boxes, scores = names["detect"](*(getattr(part, name).astype(np.int64) for name in "txyp"), start_us, end_us)
        single = Windows(np.array([[start_us, end_us]]), np.array([dt_us]))
        hist = torch.from_numpy(count_windows(part, single, *size_hw, downsample=n))[None]
        with torch.no_grad():
            ((found,), state) = checkpoint.detector(hist, state, dt_us / 50_000)
        wanted = found[0, :, 4:].sigmoid()
        np.testing.assert_allclose(boxes / n, found[0, :, :4], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(scores, wanted[:, :1] * wanted[:, 1:], atol=1e-4)
        (decoded,) = postprocess(found, [end_us], PostprocessConfig(min_score=0.002))
        expected = to_sensor(decoded, 48, 64, n)
        exact = n * found[0, :, :4].numpy(), (wanted[:, :1] * wanted[:, 1:]).numpy()  # rounding would decide ties
        xyxy, score, class_id = names["best_boxes"](*exact, 0.002)
        assert class_id.tolist() == expected.class_id.tolist() and len(score) > 1
        np.testing.assert_allclose(score, expected.score, atol=1e-4)
        np.testing.assert_allclose(xyxy, expected.xyxy, atol=n * 5e-3)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("representation", ["histogram", "surfaces"])
def test_a_program_without_this_package_reduces_a_sensor(exported, monkeypatch, representation, reduce):
    pytest.importorskip("onnxruntime")
    _, folder = exported()
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(ALONE, names)
    settings = WindowSettings(representation=representation, reduce=reduce)
    names.update(n=3, height=240, width=426, windows=asdict(settings))
    frames = []

    def run(_, inputs):  # instead of a network for frames of this size
        frames.append(inputs["hist"])
        return [np.zeros((1, 1, 6))]

    names.update(session=SimpleNamespace(run=run))
    events = random_events(1_000_000, 5, 50_000, size_hw=(720, 1280), fills_span=True)
    names["begin"](0)
    names["detect"](*(getattr(events, name).astype(np.int64) for name in "txyp"), 0, 50_000)
    single = Windows(np.array([[0, 50_000]]), np.array([50_000]))
    wanted = count_windows(events, single, 720, 1280, settings, downsample=3)
    assert frames[0].shape == wanted.shape and wanted.any()
    assert np.abs(frames[0].astype(int) - wanted).max() <= (representation == "surfaces")  # ties of rounding


def test_the_short_program_opens_what_the_command_before_it_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for page in (ROOT / "README.md",):
        before, opened = re.search(
            r"rvtssm (generate .*?)  #.*?rvtssm\.open\(\"(.*?)\"\)", page.read_text(), re.S
        ).groups()
        assert main([*before.split(), "duration_s=0.2"]) == 0 and Path(opened).is_file()


def test_the_short_program_finds_objects_and_draws_them(live_checkpoint, draw_events, tmp_path, monkeypatch, capsys):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "best.ckpt", checkpoint.detector, checkpoint)
    events = draw_events(10_000, duration_us=230_000)
    spread = Events(events.t, events.x * np.uint16(5), events.y * np.uint16(5), events.p)
    (tmp_path / SAMPLE).parent.mkdir(parents=True)
    write_dat(tmp_path / SAMPLE, spread, 240, 320)
    monkeypatch.chdir(tmp_path)
    example = program("busiest.draw").replace('"street-tiny"', '"best.ckpt"')
    assert "best.ckpt" in example.partition("#")[0]
    assert len([line for line in example.splitlines() if line]) <= 10
    names: dict = {}
    assert example.count("min_score=0.3") == 2 and "240" not in example  # the recording knows its size
    exec(example.replace("min_score=0.3", "min_score=0.01"), names)  # the weights have not learned
    assert len(names["found"]) == 12 and len(names["boxes"]) in (45, 46)
    # at other rates windows have the length of the training, on which the accuracy depends
    assert names["found"].summary.window_ms == 50 and names["stream"].windows.length_us == 50_000
    assert set(names["busiest"].names) <= {"car", "pedestrian"}
    assert f"{names['busiest'].t_us} ['" in capsys.readouterr().out
    assert (tmp_path / "outputs/found.mp4").stat().st_size > 1000
    exec(program("rvtssm.draw"), names)
    for picture in ("busiest.png", "events.png"):
        assert (tmp_path / "outputs" / picture).read_bytes().startswith(b"\x89PNG")


@torch.no_grad()
def test_the_program_of_a_layer_alone_runs_and_finer_steps_change_what_the_page_says():
    torch.manual_seed(0)
    names: dict = {}
    exec(program('layer = S5(32, TemporalConfig(discretization="zoh"))'), names)
    assert names["y"].shape == (5, 8, 32) and names["state"].shape[0] == 8
    x, changes = names["x"], []
    for rule in ("bilinear", "zoh"):
        layer = S5(32, TemporalConfig(discretization=rule))
        y, state = layer(x)
        finer, finer_state = layer(x.repeat_interleave(10, dim=0), step_scale=0.1)
        changes += [(finer_state - state).norm() / state.norm(), (finer[9::10] - y).norm() / y.norm()]
    of_state, of_output, *exact = (100 * float(change) for change in changes)
    assert 40 < of_state < 100 and 1 < of_output < 5 and max(exact) < 0.05


def test_surfaces_can_be_made_without_this_package(exported, draw_events, monkeypatch):
    pytest.importorskip("onnxruntime")
    _, folder = exported()
    monkeypatch.chdir(folder)
    settings, events = WindowSettings(representation="surfaces"), draw_events(20_000)
    names: dict = {}
    exec(ALONE, names)
    names.update(windows=asdict(settings), height=48, width=64)
    ends_us = int(events.t[0]) + np.array([0, 50_000, 55_000, 300_000])
    bounds_us = np.stack([ends_us[:-1], ends_us[1:]], axis=1)
    wanted = count_windows(events, Windows(bounds_us, np.diff(ends_us)), 48, 64, settings)
    for (start_us, end_us), frame in zip(bounds_us, wanted, strict=True):
        part = events.between(start_us, end_us)
        found = names["surfaces"](*(getattr(part, name).astype(np.int64) for name in "txyp"), start_us, end_us)[0]
        assert found.dtype == frame.dtype and found.shape == frame.shape and frame.max() > 16
        assert np.abs(found.astype(int) - frame).max() <= 1 and (found != frame).mean() < 1e-3  # ties of rounding


def test_the_live_program_prints_boxes_in_sensor_pixels(live_checkpoint, draw_events, tmp_path, monkeypatch, capsys):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "best.ckpt", checkpoint.detector, checkpoint)
    events = draw_events(20_000)
    spread = Events(events.t, events.x * np.uint16(20), events.y * np.uint16(15), events.p)  # 64 x 48 to 1280 x 720
    write_dat(tmp_path / "recording.raw", spread, 720, 1280)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(program("stream.windows").replace("min_score=0.3", "min_score=0.001"), names)  # the weights have not learned
    printed = [float(number) for number in re.findall(r"\d+\.\d*", capsys.readouterr().out)]
    assert names["stream"].downsample > 1 and max(printed) > max(names["stream"].frame_hw)
