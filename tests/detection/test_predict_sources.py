"""Prediction on what people have: folders, DSEC sequences, pipes and sockets; every format; and what can be wrong."""

import contextlib
import errno
import io
import json
import signal
import socket
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from dsec_examples import OFFSET_US, image_times, write_sequence
from event_examples import assert_same
from live_examples import Dribble
from test_predict_recording import (
    HEIGHT,
    POSTPROCESS,
    SPEC,
    WIDTH,
    random_events,
    read_lines,
    settings_of,
    write_recording,
)
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.datasets import DATASETS
from rvtssm.detection import DetectionConfig, PredictConfig, sources
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.sources import find_sources
from rvtssm.drawing.draw import strip_of
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.yolox import YoloxHead
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.piped import PipedRecording
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import Events, ReadOptions
from tests.readers.format_encoders import WRITERS

PICTURES = ("formats=[jsonl,png]", "postprocess.max_detections=5")
LINES_ONLY = settings_of(formats=["jsonl"], all_scores=True)


@pytest.fixture(scope="module")
def checkpoint(live_checkpoint):
    weights = live_checkpoint()
    weights.spec = SPEC
    return weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory, checkpoint):
    """The same detector as a file, and one of 1Mpx."""
    folder = tmp_path_factory.mktemp("weights")
    for name, spec in {"small": SPEC, "onempx": DATASETS["onempx"]}.items():
        meta = CheckpointMeta(spec, checkpoint.model_config, checkpoint.temporal_config, checkpoint.windows)
        write_checkpoint(folder / f"{name}.ckpt", meta.build(), meta)
    return folder


def call(capsys, *arguments):
    """Exit code, output and error of one command."""
    code = cli.main(["predict", *arguments])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err.strip()


# pipes and sockets


class Failing(Dribble):
    """A stream that ends with an error."""

    def __init__(self, content: bytes, size: int, error: BaseException) -> None:
        super().__init__(content, size)
        self._error = error

    def read1(self, size: int = -1) -> bytes:
        if data := super().read1(size):
            return data
        raise self._error


def bare_words(events: Events) -> bytes:
    words = np.empty((len(events), 2), "<u4")
    words[:, 0] = events.t
    words[:, 1] = events.x | events.y.astype(np.uint32) << 14 | events.p.astype(np.uint32) << 28
    return words.tobytes()


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("kind", ["dat", "bare", "evt3", "evt2"])
def test_a_stream_gives_the_events_of_the_file(tmp_path, kind, size):
    events = random_events(HEIGHT, WIDTH, start_us=0, n=400)
    content = bare_words(events) if kind == "bare" else WRITERS[kind](tmp_path / "a", events).read_bytes()
    piped = PipedRecording(Dribble(content, size), "camera", ReadOptions(HEIGHT, WIDTH) if kind == "bare" else None)
    assert_same(join_events(list(map(copy_events, piped.blocks()))), events)
    assert (piped.format, piped.num_events) == (kind.replace("bare", "dat"), len(events))
    assert piped.faults.truncated_bytes == 0


@pytest.mark.parametrize(
    ("hz", "size", "window", "convention"),
    [(None, 100, None, "exact"), (100, 1 << 16, None, "exact"), (40, 333, "shrink", "rvt")],
)
def test_a_stream_is_predicted_as_the_file(checkpoint, tmp_path, monkeypatch, hz, size, window, convention):
    checkpoint = replace(checkpoint, windows=replace(checkpoint.windows, convention=convention))
    recording = write_recording(tmp_path, duration_us=230_000, n=3_000)
    config = settings_of(formats=["npy", "png"], all_scores=True, hz=hz, window=window)
    whole = predict_recording(checkpoint, recording, tmp_path / "file", **config, progress=False)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Dribble(recording.read_bytes(), size)}))
    piped = predict_recording(checkpoint, "-", tmp_path / "piped", **config, progress=False)
    assert piped.num_windows == whole.num_windows and piped.num_events == whole.num_events
    assert piped.duration_s == whole.duration_s and piped.source == "standard input"
    ours, theirs = (np.load(tmp_path / folder / "detections.npy") for folder in ("piped", "file"))
    np.testing.assert_array_equal(ours["t"], theirs["t"])
    np.testing.assert_allclose(ours["class_confidence"], theirs["class_confidence"], atol=2e-4)
    names = [sorted(path.name for path in (tmp_path / folder).glob("[!.]*")) for folder in ("piped", "file")]
    assert names[0] == names[1] and "strip.png" in names[0]


def test_a_silence_in_a_stream_is_windows_without_events(checkpoint, tmp_path, monkeypatch):
    parts = [random_events(HEIGHT, WIDTH, start_us=start, duration_us=60_000, n=50) for start in (0, 2_000_000)]
    content = bare_words(join_events(parts))
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Dribble(content, 80)}))
    config = LINES_ONLY | {"options": ReadOptions(HEIGHT, WIDTH)}
    summary = predict_recording(checkpoint, "-", tmp_path / "out", **config, progress=False)
    assert summary.num_windows == 42 and len(read_lines(tmp_path / "out")) == 42


@pytest.mark.parametrize("pause", ["between blocks", "within one"])
def test_a_stream_ends_where_its_clock_jumps(checkpoint, tmp_path, monkeypatch, pause):
    """The empty windows of hours would never end."""
    parts = [random_events(HEIGHT, WIDTH, start, 60_000, 50) for start in (0, 4_000_000_000)]
    size = 80 if pause == "between blocks" else 1 << 16
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Dribble(bare_words(join_events(parts)), size)}))
    config = LINES_ONLY | {"options": ReadOptions(HEIGHT, WIDTH)}
    summary = predict_recording(checkpoint, "-", tmp_path / "out", **config, progress=False)
    assert "no event for more than 600 s, then one at 40000" in summary.broke_off
    assert summary.num_events == 50 and summary.num_windows == len(read_lines(tmp_path / "out")) == 2


@pytest.fixture
def listening_to_ctrl_c():
    """Also where the tests were started by something that ignores it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def signal_at_the_third_decoding(monkeypatch, number):
    calls, decode = [], YoloxHead.decode

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(number)
        return decode(*arguments)

    monkeypatch.setattr(YoloxHead, "decode", staticmethod(interrupted))


@pytest.mark.usefixtures("listening_to_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_computes_keeps_what_was_found(checkpoint, tmp_path, monkeypatch, number):
    """Ctrl-C, or what a service manager sends, finds the detector at work more often than waiting."""
    content = write_recording(tmp_path, duration_us=500_000).read_bytes()
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Dribble(content, 4096)}))
    signal_at_the_third_decoding(monkeypatch, number)
    usual = signal.getsignal(number)
    summary = predict_recording(checkpoint, "-", tmp_path / "out", **LINES_ONLY, progress=False)
    assert 3 <= summary.num_windows == len(read_lines(tmp_path / "out")) < 10
    assert signal.getsignal(number) is usual
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_an_interrupted_recording_keeps_what_was_found_and_the_next_is_not_begun(
    weights, tmp_path, monkeypatch, capsys
):
    for name in ("one", "two"):
        write_recording(tmp_path, duration_us=500_000).rename(tmp_path / f"{name}_td.dat")
    signal_at_the_third_decoding(monkeypatch, signal.SIGINT)
    words = ["predict", str(tmp_path), f"checkpoint={weights / 'small.ckpt'}", f"out={tmp_path / 'out'}", *PICTURES]
    assert cli.main([*words, "windows_per_call=1"]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted 0.150 s after the first event; what was found before is kept" in said
    assert "two_td.dat was not begun" in said and not (tmp_path / "out" / "two_td.dat").exists()
    told = json.loads((tmp_path / "out" / "one_td.dat" / "prediction.json").read_text())
    assert told["broke_off"].startswith("interrupted 0.150 s") and told["num_windows"] == 3
    assert len(read_lines(tmp_path / "out" / "one_td.dat")) == 3
    assert "strip.png" in told["files"]


@contextlib.contextmanager
def sent(content: bytes):
    """Yield the address of a socket that sends the content and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            connection.sendall(content)
            connection.close()

        sender = threading.Thread(target=send)
        sender.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        sender.join()


def test_a_socket_is_read_until_it_closes(checkpoint, tmp_path):
    recording = write_recording(tmp_path, duration_us=230_000, n=2_000)
    with sent(recording.read_bytes()) as where:
        summary = predict_recording(checkpoint, where, tmp_path / "out", **LINES_ONLY, progress=False)
    assert summary.num_windows == 5 and summary.num_events == 2_000
    with raises("source.not_opened"):
        predict_recording(checkpoint, where, tmp_path / "none", **LINES_ONLY, progress=False)
    with raises("setting.form"):
        predict_recording(checkpoint, "tcp://camera", tmp_path / "none", **LINES_ONLY, progress=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "Connection timed out"),
        (OSError("cable pulled"), "cable pulled"),
        (KeyboardInterrupt(), ""),
    ],
)
def test_any_failure_of_a_stream_and_ctrl_c_keep_what_was_found(checkpoint, tmp_path, monkeypatch, error, reason):
    stream = Failing(write_recording(tmp_path, duration_us=230_000, n=2_000).read_bytes(), 4096, error)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
    summary = predict_recording(checkpoint, "-", tmp_path / "out", **LINES_ONLY, progress=False)
    assert summary.broke_off == (reason and f"standard input broke off ({reason}); start the sender again")
    assert summary.num_windows == len(read_lines(tmp_path / "out")) == 5


@pytest.mark.parametrize("num_bytes", [10, 20_000])
def test_a_socket_that_breaks_off_is_one_line(weights, tmp_path, capfd, monkeypatch, num_bytes):
    content = write_recording(tmp_path, duration_us=230_000, n=2_000).read_bytes()[:num_bytes]
    error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    connection = SimpleNamespace(recv=Failing(content, 4096, error).read1)
    monkeypatch.setattr(sources, "connected_to", lambda where: contextlib.nullcontext(connection))
    where, out, found = "tcp://camera:1234", tmp_path / "out", num_bytes == 20_000
    assert cli.main(["predict", f"checkpoint={weights / 'small.ckpt'}", f"recording={where}", f"out={out}"]) == 2
    line = f"{where} broke off (Connection reset by peer); start the sender again"
    line = f"{line}; what was found before is kept" if found else f"rvtssm predict: {line}"
    bar, errors = [] if not found else ["predicting"], capfd.readouterr().err.splitlines()
    assert errors[-1] == line and [error.split()[0] for error in errors[:-1]] == bar
    assert out.exists() == found
    if found:
        assert json.loads((out / "prediction.json").read_text())["num_windows"] == len(read_lines(out)) > 1


def test_a_closed_standard_input_is_named(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with raises("source.not_opened"):
        predict_recording(checkpoint, "-", tmp_path / "out", **LINES_ONLY, progress=False)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"", "file.cut"),
        (b"% evt 3.0\n% geometry 64x48\n% end\n", "source.broke_off"),
        (b"some text, but no events in it", "sensor.unknown"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "file.damaged"),
        (b"% evt 7.0\n% geometry 64x48\n% end\n", "file.kind"),
    ],
)
def test_a_stream_that_is_none_says_so(checkpoint, tmp_path, monkeypatch, content, key):
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(content)}))
    with raises(key) as error:
        predict_recording(checkpoint, "-", tmp_path / "out", **LINES_ONLY, progress=False)
    assert "standard input" in str(error.value) and "/tmp" not in str(error.value)
    assert (b"%" in content or not content) or "RAW, DAT or the packets" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_stream_of_something_else_is_refused_at_its_end(checkpoint, tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, 8_000, np.uint8).tobytes()
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(noise)}))
    with raises("events.outside_frame"):
        predict_recording(checkpoint, "-", tmp_path / "out", **LINES_ONLY, options=ReadOptions(8, 8), progress=False)
    assert not (tmp_path / "out").exists()


def test_a_stream_whose_events_are_all_filtered_out_has_no_boxes_like_a_file(checkpoint, tmp_path, monkeypatch):
    """The events are far apart in time and space."""
    times_us = np.arange(0, 2_000_000, 100_000)
    x, y = (7 * np.arange(20)) % 64, (5 * np.arange(20)) % 48
    path = tmp_path / "events_td.dat"
    write_dat(path, [Events(times_us, x.astype(np.uint16), y.astype(np.uint16), np.ones(20, np.uint8))], 48, 64)
    found = []
    for source in (path, "-"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
        out = tmp_path / f"out{len(found)}"
        summary = predict_recording(checkpoint, source, out, **LINES_ONLY, filters=["background"], progress=False)
        found.append((summary.num_windows, summary.num_events, summary.removed, summary.broke_off))
    assert found[0] == found[1] == (0, 0, {"background": 1.0}, "")


# DSEC sequences


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    return write_sequence(tmp_path_factory.mktemp("dsec") / "test/thun_01_a", 4)


def test_a_dsec_sequence_is_predicted_and_drawn_on_its_images(weights, sequence, tmp_path, capsys):
    out = tmp_path / "out"
    code, said, _ = call(
        capsys, f"checkpoint={weights / 'onempx.ckpt'}", f"recording={sequence}", f"out={out}", *PICTURES
    )
    assert code == 0 and "dsec, 12000 events" in said and "computing per window" in said
    lines = read_lines(out)
    assert [line["t_us"] for line in lines] == image_times(4).tolist()  # every window ends at an image
    assert {found["class"] for line in lines for found in line["detections"]} <= {"pedestrian", "two-wheeler", "car"}
    stills = sorted(out.glob("still_*.png"))
    picture = cv2.imread(str(stills[0]))
    assert len(stills) == 4 and picture.shape == (480 * 2 + 60, 640 * 2, 3)
    assert picture.mean() > 70  # grey images, not a dark ground


def test_without_images_labels_or_clock_a_sequence_is_still_predicted(checkpoint, tmp_path):
    plain = write_sequence(tmp_path / "plain", 4, has_tracks=False, has_images=False)
    config = LINES_ONLY | {"detection": DetectionConfig(downsample=8)}
    predict_recording(checkpoint, plain, tmp_path / "with_times", **config, progress=False)
    assert [line["t_us"] for line in read_lines(tmp_path / "with_times")] == image_times(4).tolist()
    (plain / "images/timestamps.txt").unlink()
    predict_recording(checkpoint, plain, tmp_path / "without", **config, progress=False)
    first_us = open_recording(plain / "events/left/events.h5").time_range_us[0]
    assert first_us >= OFFSET_US and read_lines(tmp_path / "without")[0]["t_us"] == first_us + 50_000


def test_a_folder_of_sequences_is_predicted(weights, sequence, tmp_path, capsys):
    write_sequence(tmp_path / "test/other", 4, has_images=False, seed=3)
    (tmp_path / "test/thun_01_a").symlink_to(sequence)
    arguments = (f"checkpoint={weights / 'onempx.ckpt'}", f"recording={tmp_path / 'test'}", f"out={tmp_path / 'out'}")
    code, said, _ = call(capsys, *arguments, "formats=[npy]", "downsample=4")
    assert code == 0 and "detections" in said
    assert (tmp_path / "out/other/detections.npy").exists() and (tmp_path / "out/thun_01_a/prediction.json").exists()


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("images/timestamps.txt", "1\n2\nthree", "one time in microseconds per line"),
        ("images/timestamps.txt", "1\n2", "holds 4 images"),
        ("images/left/distorted/000001.png", "no picture", "it is no picture"),
        ("events/left/events.h5", "", "is empty"),
        ("events/left/events.h5", "\x89HDF", "events.h5"),
    ],
)
def test_a_damaged_sequence_says_what_is_wrong(checkpoint, tmp_path, path, content, message):
    folder = write_sequence(tmp_path / "a", 4, has_tracks=False)
    (folder / path).write_bytes(content.encode("latin-1"))
    config = settings_of(formats=["mp4"], downsample=8, scale=1)
    with pytest.raises(ValueError, match=message):
        predict_recording(checkpoint, folder, tmp_path / "out", **config, progress=False)
    assert not (tmp_path / "out").exists()


# folders, formats and faults


def test_every_recording_of_a_folder_gets_its_own(weights, tmp_path, capsys):
    folder = tmp_path / "recordings"
    folder.mkdir()
    write_recording(folder, duration_us=120_000)
    write_dat(folder / "b.dat", random_events(HEIGHT, WIDTH, duration_us=70_000), HEIGHT, WIDTH)
    (folder / "broken.raw").write_bytes(b"nothing")
    (folder / "b_bbox.npy").write_bytes(b"labels are no recordings")
    arguments = (f"checkpoint={weights / 'small.ckpt'}", f"recording={folder}", f"out={tmp_path / 'out'}")
    code, said, errors = call(capsys, *arguments, "formats=[jsonl]")
    assert code == 2 and "1 of 3 recordings could not be predicted" in said
    assert len([line for line in errors.splitlines() if line.startswith("broken.raw: ")]) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.dat", "drive_td.dat"]
    assert len(read_lines(tmp_path / "out/drive_td.dat")) == 3
    with raises("events.none"):
        find_sources(str(tmp_path / "out"))


def test_folders_named_by_dots_go_where_those_with_names_go(weights, tmp_path, capsys, monkeypatch):
    (tmp_path / "drives/below").mkdir(parents=True)
    for name in ("a", "b"):
        write_dat(tmp_path / f"drives/{name}.dat", random_events(HEIGHT, WIDTH, duration_us=50_000), HEIGHT, WIDTH)
    monkeypatch.chdir(tmp_path / "drives/below")
    assert call(capsys, f"checkpoint={weights / 'small.ckpt'}", "recording=..", "formats=[jsonl]")[0] == 0
    assert len(list((tmp_path / "drives/below/outputs/predict").glob("drives*/*/detections.jsonl"))) == 2


def test_every_format_says_the_same(checkpoint, tmp_path):
    recording = write_recording(tmp_path, duration_us=230_000)
    config = settings_of(formats=["jsonl", "npy", "coco", "mp4", "png"], all_scores=True)
    summary = predict_recording(checkpoint, recording, tmp_path / "out", **config, progress=False)
    assert summary.classes == {"2": "car", "5": "pedestrian"}
    rows = np.load(tmp_path / "out/detections.npy")
    results = json.loads((tmp_path / "out/coco_results.json").read_text())
    assert rows.dtype.names == ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence")
    objects = [(line["t_us"], found) for line in read_lines(tmp_path / "out") for found in line["detections"]]
    assert len(rows) == len(results) == len(objects) > 0
    for row, result, (t_us, found) in zip(rows, results, objects, strict=True):
        assert (t_us, found["class"]) == (result["image_id"], result["category"])
        assert found["score"] == result["score"]
        left, top, right, bottom = found["xyxy"]
        assert result["bbox"] == pytest.approx([left, top, right - left, bottom - top], abs=0.03)
        assert result["image_id"] == row["t"] and result["category_id"] == row["class_id"]
        assert result["category"] == summary.classes[str(row["class_id"])]
        assert result["bbox"] == pytest.approx([row[name] for name in "xywh"], abs=0.01)
        assert result["score"] == pytest.approx(row["class_confidence"], abs=1e-4)
    stills = [cv2.imread(str(path)) for path in sorted((tmp_path / "out").glob("still_*.png"))]
    assert len(stills) == 4
    strip = strip_of([still[:, :, ::-1] for still in stills])
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "out/strip.png"))[:, :, ::-1], strip)
    predict_recording(checkpoint, recording, tmp_path / "out", config=PredictConfig(["coco"]), progress=False)
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == ["coco_results.json", "prediction.json"]


def test_no_detection_at_all_is_an_empty_list(checkpoint, tmp_path):
    recording = write_recording(tmp_path, duration_us=60_000)
    config = settings_of(formats=["coco"], postprocess=replace(POSTPROCESS, min_score=1.0))
    predict_recording(checkpoint, recording, tmp_path / "out", **config, progress=False)
    assert json.loads((tmp_path / "out/coco_results.json").read_text()) == []


def test_weights_of_other_classes_than_those_asked_for_are_one_line(weights, tmp_path, capsys):
    recording = write_recording(tmp_path, duration_us=100_000)
    arguments = (f"checkpoint={weights / 'small.ckpt'}", f"recording={recording}", f"out={tmp_path / 'out'}")
    code, _, errors = call(capsys, *arguments, "dataset=onempx")
    assert code == 2 and "it knows car, pedestrian; onempx has pedestrian, two-wheeler, car" in errors
    assert "\n" not in errors and not (tmp_path / "out").exists()


def test_two_recordings_of_one_stem_do_not_meet(tmp_path):
    for name in ("a.dat", "a.raw", "b_td.dat"):
        (tmp_path / name).touch()
    assert find_sources(str(tmp_path)) == {name: str(tmp_path / name) for name in ("a.dat", "a.raw", "b_td.dat")}
