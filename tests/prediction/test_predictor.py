"""Detection in a few lines of Python equals the command, and its results fit other tools."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

import rvtssm
from rvtssm.commands import cli
from rvtssm.events.readers.dat import write_dat
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.prediction.predictor import Predictor
from rvtssm.records import Events


@pytest.fixture(scope="module")
def predictor(live_checkpoint) -> Predictor:
    return Predictor(live_checkpoint())


def test_the_import_takes_no_time_and_loads_nothing():
    code = (
        "import sys; before = {*sys.modules}; import rvtssm\n"
        "new = {name.partition('.')[0] for name in {*sys.modules} - before}\n"
        "assert new - {*sys.stdlib_module_names} == {'rvtssm'}\n"
        "assert {'open', 'load', 'Events'} <= {*dir(rvtssm)}; rvtssm.Events; assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rvtssm.nothing  # noqa: B018


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "rvtssm", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == rvtssm.__version__


@pytest.mark.parametrize(("hz", "window"), [(None, None), (20, None), (80, None), (80, "shrink")])
@pytest.mark.parametrize("length_us", [None, 90_000])
@pytest.mark.filterwarnings("ignore:windows of 12.5 ms")
def test_file_recording_events_stream_and_command_find_the_same(
    live_checkpoint, draw_events, tmp_path, hz, window, length_us, capsys
):
    weights, events = live_checkpoint(), draw_events(4_000)
    weights = replace(weights, windows=replace(weights.windows, length_us=length_us), window_lengths_us=())
    write_checkpoint(tmp_path / "best.ckpt", weights.detector, weights)
    write_dat(tmp_path / "a_td.dat", events, 48, 64)
    detector = rvtssm.load(tmp_path / "best.ckpt")
    assert detector.class_names == ("car", "pedestrian") and "s5" in repr(detector)
    opened = rvtssm.open(tmp_path / "a_td.dat")
    options = {"hz": hz, "window": window, "min_score": 0.1}
    results = [
        detector.predict(tmp_path / "a_td.dat", **options),
        detector.predict(opened, **options),
        detector.predict(events, height=48, width=64, **options),
    ]
    opened.close()
    coco = results[0].to_coco()
    assert coco and all(result.to_coco() == coco for result in results)

    overrides = [f"{key}={value}" for key, value in (("hz", hz), ("window", window)) if value]
    files = f"recording={tmp_path / 'a_td.dat'}", f"checkpoint={tmp_path / 'best.ckpt'}", f"out={tmp_path / 'out'}"
    assert cli.main(["predict", *files, "postprocess.min_score=0.1", "formats=[coco]", *overrides]) == 0
    assert json.loads((tmp_path / "out" / "coco_results.json").read_text()) == coco

    said = "windows of 12.5 ms, but these weights were trained with windows of" in capsys.readouterr().out
    assert said == (window == "shrink")

    stream = detector.stream(48, 64, hz=hz, window=window, min_score=0.1)
    frames = [*stream.push(events.between(0, 7_200_000)), *stream.push(events.between(7_200_000, 1 << 40))]
    assert len(frames) >= len(results[0]) - 1
    for frame, wanted in zip(frames, results[0], strict=False):
        assert (frame.found.t_us, frame.start_us, frame.names) == (wanted.found.t_us, wanted.start_us, wanted.names)
        length = frame.found.t_us - frame.start_us
        assert length == (12_500 if window == "shrink" else length_us or 50_000)
        np.testing.assert_allclose(frame.found.xyxy, wanted.found.xyxy, atol=1e-3)


def test_a_result_has_class_names_and_fits_other_tools(predictor, draw_events, monkeypatch):
    found = predictor.predict(draw_events(), height=48, width=64, min_score=0.1)
    frame = max(found, key=len)
    assert len(frame) and set(frame.names) <= {"car", "pedestrian"} and len(frame.names) == len(frame.to_coco())
    for name in frame.names:
        assert f"<td>{name}</td>" in frame._repr_html_() and name in found._repr_html_()
    monkeypatch.setitem(sys.modules, "supervision", None)
    monkeypatch.setattr("rvtssm.system.extras.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[supervision\]'"):
        frame.to_supervision()
    monkeypatch.setattr("rvtssm.system.extras.find_spec", lambda name: name)
    stand_in = types.SimpleNamespace(Detections=lambda **fields: fields)
    monkeypatch.setitem(sys.modules, "supervision", stand_in)
    fields = frame.to_supervision()
    assert fields["data"]["class_name"].tolist() == frame.names and fields["xyxy"] is frame.found.xyxy
    assert fields["class_id"].tolist() == frame.found.class_id.tolist() and len(fields["confidence"]) == len(frame)


def test_a_picture_shows_the_events_of_its_window_only(predictor, draw_events):
    events = draw_events()
    frame = predictor.predict(events, height=48, width=64, min_score=0.1)[2]
    part = events.between(frame.start_us, frame.found.t_us)
    pictures = [np.asarray(frame.draw(given)) for given in (events, part, events.between(0, frame.start_us))]
    assert (pictures[0] == pictures[1]).all() and (pictures[0] != pictures[2]).any()
    assert pictures[0].shape[1] >= 64 * 6


def test_events_in_memory_need_a_sensor_that_holds_them(predictor, draw_events):
    events = draw_events(100)
    with pytest.raises(ValueError, match="give height= and width="):
        predictor.predict(events)
    with pytest.raises(ValueError, match=r"outside 32x48 \(width x height\) pixels"):
        predictor.predict(events, height=48, width=32)
    nothing = Events(*(getattr(events, name)[:0] for name in "txyp"))
    with pytest.raises(ValueError, match="no events"):
        predictor.predict(nothing, height=48, width=64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda events: {"p": events.p - np.uint8(1)}, "polarity is 255, and has to be 0 or 1; make -1 a 0"),
        (lambda events: {"t": events.t[::-1].copy()}, "events must come in order of time; sort them"),
        (lambda events: {"x": events.x + np.uint16(64)}, "outside 64x48"),
    ],
)
def test_events_in_memory_are_checked_before_they_are_counted(predictor, draw_events, change, reason):
    events = draw_events()
    frame = predictor.predict(events, height=48, width=64, min_score=0.1)[0]
    wrong = replace(events, **change(events))
    for use in (lambda: predictor.predict(wrong, height=48, width=64), lambda: frame.draw(wrong)):
        with pytest.raises(ValueError, match=reason):
            use()
