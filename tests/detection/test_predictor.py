"""Detection in a few lines of Python equals the command, and its results fit other tools."""

import gc
import json
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec

import av
import numpy as np
import pytest
from user_errors import raises

import rvtssm
from rvtssm.cli import main as cli
from rvtssm.detection.predictor import Predictor
from rvtssm.events.windows import FreeGrid
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.readers.dat import write_dat
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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rvtssm.nothing  # noqa: B018


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "rvtssm", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == rvtssm.__version__


@pytest.mark.parametrize(("hz", "window", "length_us"), [(None, None, None), (80, None, 90_000), (80, "shrink", None)])
@pytest.mark.filterwarnings("ignore:windows of 12.5 ms")
def test_file_recording_events_stream_and_command_find_the_same(
    live_checkpoint, draw_events, tmp_path, hz, window, length_us, capsys
):
    weights, events = live_checkpoint(), draw_events(4_000, duration_us=230_000)
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
    overrides += ["postprocess.min_score=0.1", "min_score=0.1", "formats=[coco]"]
    assert cli.main(["predict", *files, *overrides]) == 0
    assert json.loads((tmp_path / "out" / "coco_results.json").read_text()) == coco

    said = "windows of 12.5 ms, but these weights were trained with windows of" in capsys.readouterr().out
    assert said == (window == "shrink")

    stream = detector.stream(48, 64, hz=hz, window=window, min_score=0.1)
    frames = [*stream.push(events.between(0, 7_130_000)), *stream.push(events.between(7_130_000, 1 << 40))]
    frames += stream.finish()
    assert stream.finish() == []
    for frame, wanted in zip(frames, results[0], strict=True):
        assert (frame.t_us, frame.start_us, frame.names) == (wanted.t_us, wanted.start_us, wanted.names)
        length = frame.detections.t_us - frame.start_us
        assert length == (12_500 if window == "shrink" else length_us or 50_000)
        np.testing.assert_allclose(frame.detections.xyxy, wanted.detections.xyxy, atol=1e-3)


def test_a_result_has_class_names_and_fits_other_tools(predictor, draw_events, monkeypatch):
    found = predictor.predict(draw_events(), height=48, width=64, min_score=0.1)
    frame = max(found, key=len)
    assert len(frame) and set(frame.names) <= {"car", "pedestrian"} and len(frame.names) == len(frame.to_coco())
    for name in frame.names:
        assert f"<td>{name}</td>" in frame._repr_html_() and name in found._repr_html_()
    monkeypatch.setitem(sys.modules, "supervision", None)
    with raises("install.extra", "supervision"):
        frame.to_supervision()
    stand_in = types.ModuleType("supervision")
    stand_in.__spec__, stand_in.Detections = ModuleSpec("supervision", None), lambda **fields: fields
    monkeypatch.setitem(sys.modules, "supervision", stand_in)
    fields = frame.to_supervision()
    assert fields["data"]["class_name"].tolist() == frame.names and fields["xyxy"] is frame.detections.xyxy
    assert fields["class_id"].tolist() == frame.detections.class_id.tolist() and len(fields["confidence"]) == len(frame)


def test_a_picture_shows_the_events_of_its_window_only(predictor, draw_events):
    events = draw_events()
    frame = predictor.predict(events, height=48, width=64, min_score=0.1)[2]
    part = events.between(frame.start_us, frame.detections.t_us)
    pictures = [np.asarray(frame.draw(given)) for given in (events, part, events.between(0, frame.start_us))]
    assert (pictures[0] == pictures[1]).all() and (pictures[0] != pictures[2]).any()
    assert pictures[0].shape[1] >= 64 * 6


def structured(events: Events) -> np.ndarray:
    array = np.empty(len(events), [("x", np.uint16), ("y", np.int32), ("t", np.uint64), ("p", bool)])
    for name in "xytp":
        array[name] = getattr(events, name)
    return array


def test_a_result_draws_itself_and_a_prediction_saves_its_video(predictor, draw_events, tmp_path):
    events = draw_events(duration_us=130_000)
    write_dat(tmp_path / "a_td.dat", events, 48, 64)
    inputs = [events, tmp_path / "a_td.dat", tmp_path, rvtssm.open(tmp_path / "a_td.dat")]
    results = [predictor.predict(given, hz=40, height=48, width=64, min_score=0.1) for given in inputs]
    wanted = np.asarray(results[0][2].draw(events))
    for found in results:
        assert (np.asarray(found[2].draw()) == wanted).all()
    frame = results[0][2]
    for name in ("t_us", "xyxy", "score", "class_id"):
        assert getattr(frame, name) is getattr(frame.detections, name)
    assert frame.track_id is None
    assert results[1].count("car") == sum(frame.names.count("car") for frame in results[1]) > 0
    with raises("setting.choice", "class"):
        results[1].count("person")
    assert results[1].summary.files == () and "wrote" not in " ".join(results[1].summary.lines())
    assert np.array_equal(rvtssm.draw(structured(events), 48, 64), rvtssm.draw(events, 48, 64))
    for _ in range(2):  # the second file replaces the first
        results[1].save(tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as video:
        shapes = [picture.to_ndarray(format="rgb24").shape for picture in video.decode(video=0)]
    assert shapes == [wanted.shape] * (len(results[1]) // 2)  # 40 Hz in pictures of two windows
    results[1][:1]  # a slice stays a list
    with raises("file.kind"):
        results[1].save(tmp_path / "a.avi")
    (tmp_path / "b.mp4").write_text("of someone else")
    with raises("file.exists", "b.mp4"):
        results[1].save(tmp_path / "b.mp4")
    assert (tmp_path / "b.mp4").read_text() == "of someone else"
    with raises("file.kind"):
        results[1].save(tmp_path / "a.json")


def test_a_stream_draws_the_windows_that_closed_last(predictor, draw_events):
    events = draw_events()
    stream = predictor.stream(48, 64, min_score=0.1)
    wanted = [np.asarray(frame.draw(events)) for frame in predictor.predict(events, height=48, width=64, min_score=0.1)]
    frames = []
    for start_us in range(7_000_000, 7_440_000, 20_000):
        closed = stream.push(events.between(start_us, start_us + 20_000))
        for frame in closed:
            assert (np.asarray(frame.draw()) == wanted[len(frames)]).all()
            frames.append(frame)
    assert len(frames) == 8
    with raises("stream.not_kept"):
        frames[0].draw()


def test_structured_arrays_are_events(predictor, draw_events):
    events = draw_events()
    array, options = structured(events), {"height": 48, "width": 64, "min_score": 0.1}
    found = predictor.predict(array, **options)
    assert found.to_coco() == predictor.predict(events, **options).to_coco()
    frames = predictor.stream(**options).push(array, until_us=7_430_000)
    assert [frame.t_us for frame in frames] == [frame.t_us for frame in found[: len(frames)]] and len(frames) == 8
    assert (np.asarray(found[1].draw(array)) == np.asarray(found[1].draw())).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (np.zeros((500, 4)), r"an array of float64 with the shape \(500, 4\) holds no events; give rvtssm.Events"),
        ([1, 2, 3], "a list holds no events"),
        (np.zeros(500, [("t", np.int64), ("x", np.int64)]), "columns t, x and none for y, p"),
        (np.full(500, 0.5, [(name, np.float32) for name in "txyp"]), "without a unit"),
        (np.array([(2, -1, 1, 1)], [(name, np.int64) for name in "txyp"]), "1 of 1 events outside"),
        (np.array([("2", 1, 1, 1)], [("t", "U9"), *((name, np.int64) for name in "xyp")]), "columns of <U9"),
    ],
)
def test_what_holds_no_events_is_refused_without_printing_it(predictor, given, reason):
    stream = predictor.stream(48, 64)
    for use in (lambda: predictor.predict(given, height=48, width=64), lambda: stream.push(given)):
        with pytest.raises(ValueError, match=reason) as refused:
            use()
        assert len(str(refused.value)) < 250


def test_whole_numbers_of_other_types_are_events():
    t, x, y, p = np.array([1, 2], np.int32), np.array([3, 4]), np.array([5, 6], np.uint8), np.array([True, False])
    events = Events(t, x, y, p)
    assert [getattr(events, name).dtype for name in "txyp"] == [np.int64, np.uint16, np.uint16, np.uint8]
    assert [getattr(events, name).tolist() for name in "txyp"] == [[1, 2], [3, 4], [5, 6], [1, 0]]
    for wrong, key in (
        ({"t": t / 1e6}, "array.value"),
        ({"t": t.astype("M8[ns]")}, "array.value"),
        ({"t": t.astype("m8[s]")}, "array.value"),
        ({"x": x - 4}, "array.value"),
        ({"y": np.array([0, 1 << 16])}, "array.value"),
        ({"p": np.array([1, 2], np.int8)}, "events.polarity"),
        ({"p": np.array([0.5, 1])}, "events.polarity"),
        ({"p": np.array(["ON", "OFF"])}, "events.polarity"),
        ({"t": np.array(["1", "2"])}, "array.value"),
        ({"x": x[:1]}, "array.form"),
        ({"t": t[:, None]}, "array.form"),
    ):
        with raises(key):
            Events(**{"t": t, "x": x, "y": y, "p": p, **wrong})


@pytest.mark.parametrize("p", [[0, 1], [-1, 1], [False, True], [-1.0, 1.0]])
def test_polarities_mean_the_same_in_events_and_in_structured_arrays(p):
    t, x, y, p = np.array([5, 6]), np.array([1, 3]), np.array([2, 4]), np.array(p)
    array = np.empty(2, [("t", t.dtype), ("x", x.dtype), ("y", y.dtype), ("p", p.dtype)])
    array["t"], array["x"], array["y"], array["p"] = t, x, y, p
    assert Events(t, x, y, p).p.tolist() == [0, 1]
    assert np.array_equal(rvtssm.draw(array, 48, 64), rvtssm.draw(Events(t, x, y, p), 48, 64))


def test_events_are_sliced_without_a_copy_and_selected_by_a_mask(draw_events):
    events = draw_events(100)
    assert len(events[:10]) == 10 and len(events[::2]) == 50 and len(events[10:5]) == 0
    assert all(getattr(events[90:], name).base is not None for name in "txyp")
    assert np.shares_memory(events[90:].t, events.t) and events[90:].t.tolist() == events.t[90:].tolist()
    assert events[events.p == 1].x.tolist() == events.x[events.p == 1].tolist()
    for wrong in (5, slice(None, None, -1), slice(0.5, 2), [1, 2], np.array([3, 1]), np.ones(5, bool)):
        with raises("events.part"):
            events[wrong]
    for convert in (list, np.asarray):
        with raises("events.part"):
            list(convert(events))


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [((0.0, 1.0), "whole microseconds; for seconds"), ((50_000, 10_000), "give the earlier time first")],
)
def test_a_range_of_time_that_is_no_whole_microseconds_or_ends_early_is_refused(draw_events, tmp_path, bounds, reason):
    write_dat(tmp_path / "a_td.dat", draw_events(), 48, 64)
    recording = rvtssm.open(tmp_path / "a_td.dat")
    for method in (recording.between, recording.read().between, partial(recording.iterate, 1_000)):
        name = "iterate" if isinstance(method, partial) else "between"
        with pytest.raises(ValueError, match=rf"^{name}\(start_us={bounds[0]}, end_us={bounds[1]}\): .*{reason}"):
            method(*bounds)  # iterate says so at once, not at its first block


def test_a_picture_of_a_recording_says_how_to_take_events_from_it(draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(), 48, 64)
    recording = rvtssm.open(tmp_path / "a_td.dat")
    with raises("events.form"):
        rvtssm.draw(recording)
    with raises("sensor.unknown"):
        rvtssm.draw(recording.read())


def test_an_opened_recording_is_closed_when_it_is_collected(draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(100), 48, 64)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(next(rvtssm.open(tmp_path / "a_td.dat").iterate())) == 100
        gc.collect()
    assert told == []


def test_arguments_that_are_no_numbers_are_told(predictor, draw_events):
    for wrong, key in (
        ({"hz": "50"}, "setting.form"),
        ({"hz": 0}, "setting.out_of_range"),
        ({"downsample": 1.5}, "setting.out_of_range"),
        ({"downsample": 50}, "setting.out_of_range"),
        ({"track": "sort"}, "setting.choice"),
        ({"min_score": "0.3"}, "setting.form"),
    ):
        with raises(key):
            predictor.predict(draw_events(100), height=48, width=64, **wrong)


def test_numbers_of_numpy_are_numbers(predictor, draw_events, tmp_path):
    events, plain = draw_events(1_000), {"hz": 60, "downsample": 1, "min_score": 0.125}
    given = {"hz": np.float32(60), "downsample": np.int64(1), "min_score": np.float32(0.125)}
    wanted = predictor.predict(events, height=48, width=64, **plain).to_coco()
    assert wanted and predictor.predict(events, height=np.uint8(48), width=np.uint16(64), **given).to_coco() == wanted
    np.savez(tmp_path / "a.npz", t=events.t, x=events.x, y=events.y, p=events.p)
    opened = rvtssm.open(tmp_path / "a.npz", np.uint8(48), np.int64(64))
    assert predictor.predict(opened, **given).to_coco() == wanted
    large = [predictor.stream(kind(720), kind(1280)).frame_hw for kind in (int, np.uint16)]
    large.append(predictor.stream(720, 1280, downsample=np.uint8(18)).frame_hw)
    assert large == [(40, 71)] * 3
    settings = [predictor.checkpoint.windows_at(hz) for hz in (60, np.float32(60))]
    assert len({FreeGrid(0, each).num_ended(6_000_000_000) for each in settings}) == 1


def test_an_opened_recording_is_repaired_if_predict_is_told_to(predictor, draw_events, tmp_path):
    events = draw_events(5_000)
    events.t[1::20] -= 5_000
    np.savez(tmp_path / "a.npz", t=events.t, x=events.x, y=events.y, p=events.p)
    recording = rvtssm.open(tmp_path / "a.npz", 48, 64)
    assert len(predictor.predict(recording, repair=True)) == 9
    assert not recording.repair, "it was meant for one call"
    with pytest.raises(ValueError, match="in Python repair=True"):
        predictor.predict(rvtssm.open(tmp_path / "a.npz", 48, 64))


def test_a_recording_without_a_size_gets_the_usual_sensor_of_the_command(predictor, draw_events, tmp_path):
    events = draw_events(500)
    rows = zip(*(getattr(events, name).tolist() for name in "txyp"), strict=True)
    (tmp_path / "a.csv").write_text("t,x,y,p\n" + "".join(f"{t},{x},{y},{p}\n" for t, x, y, p in rows))
    found = predictor.predict(tmp_path / "a.csv", downsample=1)
    assert found.summary.sensor_hw == (180, 240)
    assert found.summary.assumed_sensor == "DAVIS240" and "DAVIS240" in found._repr_html_()
    assert repr(found).endswith(", assuming 240 x 180 (DAVIS240))")


def test_an_opened_recording_refuses_another_size_as_its_file_does(predictor, draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(), 48, 64)
    for given in (tmp_path / "a_td.dat", rvtssm.open(tmp_path / "a_td.dat")):
        with raises("sensor.contradicts"):
            predictor.predict(given, height=20, width=10)
        assert predictor.predict(given, height=48).summary.sensor_hw == (48, 64)


def test_a_folder_of_recordings_is_refused(predictor, draw_events, tmp_path):
    for name in "abc":
        write_dat(tmp_path / f"{name}_td.dat", draw_events(100), 48, 64)
    with raises("source.kind"):
        predictor.predict(tmp_path)


def test_events_in_memory_need_a_sensor_that_holds_them(predictor, draw_events):
    events = draw_events(100)
    with raises("sensor.unknown"):
        predictor.predict(events)
    with pytest.raises(ValueError, match=r"outside its 32x48 \(width x height\) pixels"):
        predictor.predict(events, height=48, width=32)
    nothing = Events(*(getattr(events, name)[:0] for name in "txyp"))
    with raises("events.none"):
        predictor.predict(nothing, height=48, width=64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda events: {"p": events.p + np.uint8(2)}, "1 is brighter"),
        (lambda events: {"t": events.t[::-1].copy()}, "earlier than an event before them|sort them"),
        (lambda events: {"x": events.x + np.uint16(64)}, "outside (its )?64x48"),
    ],
)
def test_events_in_memory_are_checked_before_they_are_counted(predictor, draw_events, change, reason):
    events = draw_events()
    frame = predictor.predict(events, height=48, width=64, min_score=0.1)[0]
    wrong = replace(events, **change(events))
    for use in (lambda: predictor.predict(wrong, height=48, width=64), lambda: frame.draw(wrong)):
        with pytest.raises(ValueError, match=reason):
            use()
