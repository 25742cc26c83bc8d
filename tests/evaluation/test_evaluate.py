"""What an evaluation refuses before it begins, and what it says about rates that label times do not allow."""

import json
import os
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events, write_labelled
from scored_rows import by_rate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision.ops import batched_nms

from rvtssm.boxes import cxcywh_to_xyxy, ltwh_to_xyxy, xyxy_to_ltwh
from rvtssm.cli import evaluate as verb
from rvtssm.cli import main as cli
from rvtssm.datasets import DATASETS, DataConfig, DatasetConfig, PreprocessConfig, build_spec
from rvtssm.datasets.loader import Collate
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.evaluation import detector_run, evaluating, rates
from rvtssm.evaluation.detector_run import WeightsFile, stream
from rvtssm.evaluation.evaluating import evaluate
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.matching import match_detections
from rvtssm.evaluation.protocol import scored_labels
from rvtssm.evaluation.rates import plan_rates
from rvtssm.events.labels import write_boxes
from rvtssm.export.exported import ExportedDetector
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import read_checkpoint, weights_digest, write_checkpoint
from rvtssm.models.official import convert_official
from rvtssm.models.streams import Streams
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections, WindowSettings
from rvtssm.system.user_error import UserError
from tests.evaluation.test_coco import SPEC as GEN1_SPEC
from tests.evaluation.test_coco import plain_coco

SPEC = replace(DATASETS["synthetic"], height=48, width=64)
QUICK = ("precision=float32", "bootstrap=0", "data.workers=0")
ALL_BOXES = PostprocessConfig(min_score=0)
LABELS_US = 50_000 * np.arange(5, 22)  # every 50 ms

pytestmark = pytest.mark.usefixtures("without_pictures")


def write_recording(raw: Path, labels_us=LABELS_US, side_px: float = 20, track_id: int = 0, size_hw=(48, 64)) -> Path:
    """One test recording of random events; returns `raw`."""
    boxes = boxes_of(*((t_us, 2, 3, side_px, 25) for t_us in labels_us), still_us=-1, track_id=track_id)
    write_labelled(raw / "test", "a", random_events(5_000, 0, 1_090_000, 10_000), boxes, size_hw)
    return raw


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    return write_recording(tmp_path_factory.mktemp("data") / "raw")


@pytest.fixture(scope="module")
def weights(tmp_path_factory, live_checkpoint, raw) -> Path:
    """A checkpoint that says where the recording is."""
    path = tmp_path_factory.mktemp("weights") / "model.ckpt"
    trained = replace(live_checkpoint(num_blocks=(0, 0, 0, 1)), spec=SPEC, raw_dir=str(raw))
    write_checkpoint(path, trained.detector, trained)
    return path


@pytest.fixture
def batches_run(monkeypatch):
    """The recordings of each batch that the detector has run."""
    batches = []

    def noted_stream(detector, loader, **options):
        batches.append(loader.dataset.sequences)
        return stream(detector, loader, **options)

    monkeypatch.setattr(detector_run, "stream", noted_stream)
    return batches


@pytest.fixture
def scored(monkeypatch):
    """The recordings that were scored, with their labels and detections."""
    recordings = []

    def noted_match(those, spec, **options):
        recordings.extend(those)
        return match_detections(those, spec, **options)

    monkeypatch.setattr(rates, "match_detections", noted_match)
    return recordings


def evaluated(checkpoint: Path, out: Path, **settings) -> dict:
    """The report that is written to `out`."""
    usual = {"bootstrap": 0, "data": DataConfig(workers=0), "precision": "float32"}
    evaluate(checkpoint, out=out, **{**usual, **settings})
    return json.loads((out / "evaluation.json").read_text())


@pytest.fixture
def refused(weights, tmp_path, batches_run):
    """A function: settings -> the line that refuses them before a single window was looked at."""

    def answer(checkpoint: Path = weights, **settings) -> str:
        batches_run.clear()
        with pytest.raises(UserError) as refusal:
            evaluated(checkpoint, tmp_path / "out", **settings)
        assert "\n" not in refusal.value.text and not (tmp_path / "out").exists() and not batches_run
        return refusal.value.text

    return answer


def prepare(raw: Path, prepared: Path, stride_us: int = 50_000, labels: str = "required") -> Path:
    settings = WindowSettings(stride_us, None, "exact", 10, 10)
    preprocess_dataset(SPEC, raw, prepared, settings, PreprocessConfig(labels, ("test",), workers=1), progress=False)
    return prepared


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, raw) -> Path:
    """The recording, prepared with the windows of the training."""
    return prepare(raw, tmp_path_factory.mktemp("prepared"))


def test_every_rate_is_checked_before_the_first_is_scored(refused, raw, prepared, tmp_path):
    assert "stride_us=0.5; give a number, at least 1" in refused(hz=[20, 2_000_000])
    assert "stride_us=50000 but the run asks for 25000" in refused(prepared_dir=prepared, hz=[20, 40])
    faster = prepare(raw, tmp_path / "faster", stride_us=25_000)
    # without memory, the rate of training is scored as well
    answer = refused(prepared_dir=faster, hz=[40], ablate_memory=True)
    assert "stride_us=25000 but the run asks for 50000" in answer


def test_every_checkpoint_is_read_before_the_first_is_scored(weights, tmp_path, capsys, batches_run):
    (tmp_path / "broken.ckpt").write_bytes(b"nothing")
    words = f"checkpoints=[{weights},{tmp_path / 'broken.ckpt'}]", f"out={tmp_path / 'out'}"
    assert cli.main(["evaluate", *words]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "━" not in line)
    assert f"{tmp_path / 'broken.ckpt'}: torch cannot read it" in line
    assert not (tmp_path / "out").exists() and not batches_run


@pytest.mark.parametrize("labels", ["none", "early"])
def test_recordings_without_a_box_to_score_are_refused(refused, raw, tmp_path, labels):
    where = {
        "none": lambda: {"prepared_dir": prepare(raw, tmp_path / "prepared", labels="none")},
        "early": lambda: {"raw_dir": write_recording(tmp_path / "raw", [300_000, 500_000])},
    }[labels]()
    answer = refused(**where)
    assert "the test split: it has no box that is scored" in answer and "up to 0.5 s" in answer


def told(out: Path, *words: str) -> dict:
    """The report of the verb, which says on the screen what it does."""
    assert cli.main(["evaluate", *QUICK, *words, f"out={out}"]) == 0
    return json.loads((out / "evaluation.json").read_text())


def test_the_rules_of_the_data_decide_which_boxes_are_scored(weights, tmp_path, capsys):
    checkpoint = tmp_path / "model.ckpt"
    trained = read_checkpoint(weights)
    trained.spec = replace(trained.spec, min_side_px=10)
    write_checkpoint(checkpoint, trained.detector, trained)
    raw = write_recording(tmp_path / "raw", side_px=6.5)
    found = told(tmp_path / "out", f"checkpoint={checkpoint}", f"dataset.raw_dir={raw}", "hz=[40]", "window=slide")
    printed = " ".join(capsys.readouterr().out.split())
    assert "scored by the rules of the data, which are not those of the training: min_side_px 6" in printed
    assert "with 17 labels, of which 11 are scored" in printed
    assert found["conditions"]["scored"].startswith("11 boxes; ")
    assert "without a drop, because 20 Hz, the rate of training, is not one of evaluation.hz" in printed


def test_a_file_exported_for_other_frames_is_refused(weights, refused, monkeypatch):
    trained = read_checkpoint(weights)
    described = {"frame_hw": [96, 128], "state": {}, "predictions": {}}
    exported = ExportedDetector(lambda *_: ([], []), trained, described, "a.onnx")
    monkeypatch.setattr(WeightsFile, "read_with_digest", lambda _: (trained.with_detector(exported), ""))
    monkeypatch.setattr(evaluating, "chosen_precision", lambda *_: "float32")
    answer = refused(Path("model.onnx"))
    assert "was exported for frames of 128 x 96 pixels, but frames of 64 x 48 are needed; export it again" in answer


def test_what_was_measured_is_on_disk_before_it_is_shown(weights, tmp_path, capsys, monkeypatch):
    def print_in_latin(*_, **__):
        raise UnicodeEncodeError("latin-1", "–", 0, 1, "ordinal not in range(256)")

    monkeypatch.setattr(verb, "console_table", print_in_latin)
    assert cli.main(["evaluate", f"checkpoint={weights}", f"out={tmp_path / 'out'}", *QUICK]) == 1
    assert by_rate(json.loads((tmp_path / "out/evaluation.json").read_text()))["20"]["AP"] == 0


def test_a_loading_process_that_dies_ends_an_evaluation_with_one_line(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Collate, "__call__", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # of the process
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # seconds between looks
    assert cli.main(["evaluate", f"checkpoint={weights}", f"out={tmp_path / 'out'}", "data.workers=1"]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "━" not in line)
    assert line.startswith("rvtssm evaluate: ") and "DataLoader worker" in line


@pytest.mark.parametrize(("window", "lengths_us"), [("shrink", [25_000, 50_000]), ("both", [50_000, 25_000, 50_000])])
def test_windows_slide_or_shrink_or_both_and_the_rate_of_training_runs_once(
    weights, tmp_path, batches_run, window, lengths_us
):
    report = evaluated(weights, tmp_path / "out", hz=[20, 40], window=window)
    lengths = [np.ptp(recording.windows.bounds_us, axis=1) for (recording,) in batches_run]
    assert [set(each) for each in lengths] == [{length_us} for length_us in lengths_us]  # the most steps first
    kinds = ["slide", "shrink"] if window == "both" else [window]
    assert list(report["drop"]) == kinds and report["rows"][0]["window"] == kinds[0]
    rates = [by_rate(report, kind) for kind in kinds]
    assert all(set(each) == {"20", "40"} for each in rates)
    assert all(each["20"] == rates[0]["20"] for each in rates)  # at the rate of training they are the same


def test_a_single_rate_needs_no_list(weights, tmp_path, refused):
    assert list(by_rate(evaluated(weights, tmp_path / "found", hz=40, window="slide"))) == ["40"]
    for wrong in (0, -5, [], [20, "fast"], "fast", [20, 20.0], True):
        assert "evaluation.hz" in refused(hz=wrong)


def steps_ms(report: dict) -> dict[str, float]:
    return {hz: row["step_ms"] for hz, row in by_rate(report).items()}


def test_rows_carry_the_rate_that_was_run(weights, tmp_path):
    """Labels are 50 ms apart: 41 Hz becomes two steps between labels, 60 Hz three."""
    found = evaluated(weights, tmp_path / "out", hz=[20, 41, 60], window="slide")
    assert steps_ms(found) == pytest.approx({"20": 50, "40": 25, "60": 50 / 3}, rel=1e-4)
    assert found["conditions"]["windows"].endswith("every label time ends a window; 40 Hz was run for 41 Hz")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ([20, 30], "30 Hz cannot be reached, .* labels are 50 ms apart, which makes it 40 Hz; ask for a rate with"),
        ([5], "5 Hz cannot be reached, .* which makes it 20 Hz; ask for .*, or set .*grid=free"),
        ([40, 41], "40 and 41 Hz are the same steps of 25 ms between labels"),
    ],
)
def test_a_rate_that_labels_do_not_allow_is_refused(refused, asked, answer):
    assert re.search(answer, refused(hz=asked))


def test_the_rate_is_that_of_the_steps_between_labels(refused, tmp_path):
    """Before the first label the steps have any length, which must not hide the others."""
    raw = write_recording(tmp_path / "raw", labels_us=850_000 + 50_000 * np.arange(5))
    assert "which makes it 40 Hz" in refused(raw_dir=raw, hz=[30])


def test_the_rate_of_training_is_run_where_labels_do_not_allow_it_and_carries_its_true_name(weights, tmp_path):
    """Labels 125 ms apart make two steps at 20 Hz, in prepared recordings as well."""
    raw = write_recording(tmp_path / "raw", 125_000 * np.arange(2, 9))
    found = evaluated(weights, tmp_path / "out", raw_dir=raw, hz=[20, 8], window="slide")
    assert steps_ms(found) == {"16": 62.5, "8": 125} and found["reference_hz"] == 16


def test_on_the_free_grid_every_rate_is_exact_and_labels_are_scored_at_the_next_window_end(
    weights, raw, tmp_path, scored
):
    asked = {"grid": "free", "hz": [30, 5], "window": "shrink"}
    found = evaluated(weights, tmp_path / "out", postprocess=ALL_BOXES, **asked)
    assert steps_ms(found) == pytest.approx({"30": 100 / 3, "5": 200}, rel=1e-4)
    assert found["title"].endswith("free grid") and "scored at the next window end" in found["conditions"]["windows"]
    for recording, stride_us in zip(scored, (200_000, 1e6 / 30), strict=True):
        labels = recording.labels
        first_us = int(open_recording(raw / "test/a_td.dat", 48, 64).time_range_us[0])
        assert [frame.t_us for frame in recording.detections] == labels.t_us.tolist() == LABELS_US.tolist()
        ends_us = np.rint(first_us + stride_us * np.arange(1, 200)).astype(int)
        np.testing.assert_array_equal(labels.window_index, np.searchsorted(ends_us, labels.t_us))
    late = scored[0].detections  # at 5 Hz four labels share a window, and so its detections
    same = np.diff(scored[0].labels.window_index) == 0
    assert same.any() and [np.array_equal(one.score, other.score) for one, other in pairwise(late)] == same.tolist()


STREAMING = {"streaming": True, "time_shifts_ms": []}


def test_streaming_without_latency_is_average_precision_to_the_last_digit(weights, tmp_path, scored):
    same = {"hz": [20, 40], "window": "shrink", "postprocess": ALL_BOXES}
    plain = evaluated(weights, tmp_path / "plain", **same)
    late = {"streaming": True, "latency_ms": 0, "time_shifts_ms": [-50, 0, 50]}
    streamed = evaluated(weights, tmp_path / "streamed", **same, **late)
    for hz, row in by_rate(plain).items():
        for name in row:
            assert by_rate(streamed)[hz][name] == row[name], (hz, name)
    assert by_rate(streamed)["40"]["taken_hz"] == pytest.approx(40, rel=0.01)
    for one, other in zip(scored[:2], scored[2:], strict=True):  # the rates of both; weights from nothing have no AP
        for frame, again in zip(one.detections, other.detections, strict=True):
            assert frame.t_us == again.t_us and len(frame) > 0
            np.testing.assert_array_equal(frame.xyxy, again.xyxy)
            np.testing.assert_array_equal(frame.score, again.score)
    assert streamed["time_shifts_ms"]["0"] == by_rate(plain)["20"]["AP"]
    assert list(streamed["time_shifts_ms"]) == ["-50", "0", "50"] and plain["time_shifts_ms"] == {}
    assert streamed["title"].endswith("streaming")
    assert re.search(r"best with 0 ms per step: [24]0 Hz, AP [0-9.]+$", streamed["conditions"]["best rate"])


def test_a_latency_of_a_file_is_that_of_a_single_window(refused, tmp_path):
    def answer(content) -> str:
        (tmp_path / "told.json").write_text(json.dumps(content))
        return refused(latency_from=str(tmp_path / "told.json"), **STREAMING)

    assert "with 8 windows per call" in answer({"step_ms": {"p50": 3}, "windows_per_call": 8})
    assert "a latency of -5 ms; it must be at least 0" in answer({"step_ms": {"p50": -5}, "windows_per_call": 1})
    assert "has no latency" in answer({"rows": []})


def test_memory_is_taken_away_at_the_true_rate_of_training_and_its_latency(weights, tmp_path, monkeypatch):
    """Labels 125 ms apart make 16 Hz of the 20 Hz of the training, which may be asked for by that name."""
    raw = write_recording(tmp_path / "raw", labels_us=250_000 + 125_000 * np.arange(6))
    calls = []
    score_rate, score_shifts = evaluating.score_rate, evaluating.score_shifts

    def look(run, rate, seed, is_reset=False):
        scored = score_rate(run, rate, seed, is_reset)
        calls.append((rate.asked_hz, scored.rows[0].get("latency_ms"), is_reset))
        return scored

    def look_at_shifts(run, rate, shifts_ms):
        calls.append((rate.asked_hz, list(shifts_ms)))
        return score_shifts(run, rate, shifts_ms)

    for module in (evaluating, rates):
        monkeypatch.setattr(module, "score_rate", look)
    monkeypatch.setattr(evaluating, "score_shifts", look_at_shifts)
    same = {"raw_dir": raw, "ablate_memory": True, "window": "shrink"}
    found = evaluated(weights, tmp_path / "one", **same, hz=[8, 16], time_shifts_ms=[0])
    assert calls == [(8, None, False), (16, None, False), (16, None, True), (16, [0])]
    assert "at 16 Hz, state reset" in found["conditions"]["AP without memory"]
    calls.clear()
    evaluated(weights, tmp_path / "two", **same, hz=[40], latency_ms=30, **STREAMING)
    assert calls == [(40, 30, False), (20, 30, True), (40, [])]


def test_a_late_detector_counts_all_events_since_the_window_it_took_before(weights, raw, tmp_path, batches_run):
    measured = tmp_path / "prediction.json"
    measured.write_text(json.dumps({"step_ms": {"p50": 120}, "windows_per_call": 1}))
    found = evaluated(weights, tmp_path / "out", latency_from=str(measured), window="shrink", **STREAMING)
    ((sequence,),) = batches_run
    bounds_us = sequence.windows.bounds_us
    assert (bounds_us[1:, 0] == bounds_us[:-1, 1]).all()  # no event is lost
    assert set(np.diff(bounds_us[:, 1])) == {100_000, 150_000}
    assert sequence.windows.dt_us[1:].tolist() == np.diff(bounds_us[:, 1]).tolist()
    events = open_recording(raw / "test/a_td.dat", 48, 64).between(*bounds_us[2].tolist())
    assert len(events) > 0 and sequence.read(2, 3).sum() == len(events)
    assert by_rate(found)["20"]["latency_ms"] == 120
    assert by_rate(found)["20"]["taken_hz"] == pytest.approx(1e6 / sequence.windows.dt_us.mean())


def test_a_latency_is_measured_where_none_is_given(weights, tmp_path, capsys):
    """On a recording as the data say it is, with events out of order."""
    raw = write_recording(tmp_path / "raw", size_hw=(48, 64))
    content = (raw / "test/a_td.dat").read_bytes()
    head, words = content[: -5_000 * 8], np.frombuffer(content[-5_000 * 8 :], "<u8")
    (raw / "test/a_td.dat").write_bytes(head + np.concatenate([words[100:200], words[:100], words[200:]]).tobytes())
    where = (
        "dataset=synthetic",
        f"dataset.raw_dir={raw}",
        "dataset.repair=true",
        "dataset.height=48",
        "dataset.width=64",
    )
    late = "precision=bf16", "streaming=true", "time_shifts_ms=[]"
    found = told(tmp_path / "out", f"checkpoint={weights}", *late, *where)
    assert 0 < by_rate(found)["20"]["latency_ms"] < 10_000
    assert "measured on this machine" in found["conditions"]["streaming"]
    printed = capsys.readouterr().out
    assert "best on this machine: 20 Hz" in printed
    digest = found["conditions"]["weights SHA-256"]
    assert digest == weights_digest(read_checkpoint(weights).detector.state_dict())
    (line,) = (line for line in " ".join(printed.split()).split("to cite: ")[1:])
    assert f"at 20 Hz on synthetic test, custom s5, streaming; weights SHA-256 {digest[:16]}, rvtssm" in line
    assert json.loads((tmp_path / "out/environment.json").read_text())["verb"] == "evaluate"


def test_weights_are_scored_as_they_are_on_data_with_other_classes_and_frames(weights, refused, tmp_path, monkeypatch):
    folder = write_recording(tmp_path / "own", size_hw=(60, 80))
    about = "height: 60\nwidth: 80\nclasses: [person, car, bus]\nclass_ids: [1, 0, 2]\nrepair: true\n"
    (folder / "dataset.yaml").write_text(about)  # on disk, 0 is a vehicle
    where = {"dataset": DatasetConfig(name="custom"), "raw_dir": folder}
    assert "'evaluation.class_map={NAME_IN_WEIGHTS: NAME_IN_DATA}'" in refused(**where)
    answer = refused(**where, class_map={"vehicle": "cars"})
    assert "evaluation.class_map=cars; choose from person, car, bus" in answer

    def find_all(detector, loader, **options):
        assert stream(detector, loader, **options).keys() == {0}
        (sequence,) = loader.dataset.sequences
        frames = [sequence.labels[sequence.labels.window_index == step] for step in sequence.wanted_steps]
        ones = np.ones(1, np.float32)
        return {
            0: [
                Detections(ltwh_to_xyxy(each.boxes_ltwh), ones, np.zeros(1, np.int64), int(each.t_us[0]))
                for each in frames
            ]
        }

    monkeypatch.setattr(detector_run, "stream", find_all)  # vehicles, class 0 of the weights
    found = evaluated(weights, tmp_path / "found", **where, class_map={"vehicle": "car"})
    assert by_rate(found)["20"]["AP/car"] == 1 and by_rate(found)["20"]["AP/bus"] is None
    said = "of the weights by evaluation.class_map={'vehicle': 'car'}; the weights do not know bus, whose boxes all"
    assert found["conditions"]["classes"].startswith(said)
    assert found["conditions"]["data"] == f"{folder}; faulty recordings repaired"


def test_a_report_at_other_rates_replaces_none_and_is_cited_with_its_windows(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for hz in (20, 40):
        assert cli.main(["evaluate", str(weights), f"hz=[{hz}]", *QUICK]) == 0
        found = json.loads((tmp_path / f"outputs/evaluate/model{'_2' * (hz == 40)}/evaluation.json").read_text())
        assert list(by_rate(found)) == [str(hz)]
    assert len(list(tmp_path.glob("outputs/evaluate/*/evaluation.json"))) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "output outputs/evaluate/model_2" in printed and " at 20 Hz on synthetic" in printed
    assert " at 40 Hz (window=slide, trained at 20 Hz) on synthetic" in printed


def test_labels_are_interpolated_along_tracks_and_marked(weights, tmp_path):
    raw = write_recording(tmp_path / "raw", track_id=7)
    found = evaluated(weights, tmp_path / "out", raw_dir=raw, label_hz=100, grid="free")
    assert found["title"].endswith("labels interpolated to 100 Hz") and "tracks" in found["conditions"]["labels"]
    assert found["conditions"]["data"] == str(raw)
    assert found["breakdown"]["groups"]["size"]["parts"]["small"]["boxes"] == 55  # from 510 to 1050 ms; on disk 11


def test_tracks_are_scored_and_stand_in_every_table(weights, refused, tmp_path, capsys):
    raw = write_recording(tmp_path / "raw", track_id=7)
    found = told(tmp_path / "found", str(weights), "track=bytetrack", f"dataset.raw_dir={raw}")
    assert {"HOTA", "MOTA", "IDF1"} < set(by_rate(found)["20"]) and "bytetrack" in found["conditions"]["tracks"]
    assert "HOTA" in capsys.readouterr().out
    answer = refused(prepared_dir=prepare(raw, tmp_path / "prepared"), track="bytetrack")
    assert "which prepared recordings do not have" in answer


def test_tracks_are_those_of_annotated_boxes(refused, tmp_path):
    raw = write_recording(tmp_path / "raw")
    boxes = boxes_of((600_000, 2, 3, 20, 25), (625_000, 2, 3, 20, 25), track_id=[0, 3], pseudo_score=[0, 0.9])
    write_boxes(raw / "test/a_bbox.npy", boxes)
    assert "have no track_id" in refused(raw_dir=raw, track="bytetrack")
    assert "do not say which boxes are of one object" in refused(raw_dir=raw, label_hz=100, grid="free")


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"latency_ms": 5}, "only applies to streaming; set evaluation.streaming=true"),
        ({"label_hz": 100}, "makes labels between window ends"),
        ({"label_hz": 100, "grid": "free"}, "test split: The labels do not say which boxes are of one object"),
        ({"streaming": True, "latency_ms": 5, "latency_from": "x"}, "both give the duration of a step"),
        ({"streaming": True, "latency_from": "nothing.json"}, "has no latency"),
        ({"time_shifts_ms": [0, 0]}, "name each element once"),
        ({"track": "bytetrack"}, "the labels of the test split have no track_id"),
        ({"track": "bytetrack", "grid": "free", "label_hz": 100}, "leave one of them out"),
    ],
)
def test_settings_of_streaming_that_cannot_be_are_refused(refused, settings, answer):
    assert answer in refused(**settings)


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"grid": "free"}, "source=raw"),
        ({"streaming": True}, "the latency is measured on raw recordings"),
        ({"streaming": True, "latency_ms": 70}, "evaluation.when_late=queue"),
    ],
)
def test_what_prepared_recordings_do_not_allow_is_refused(refused, prepared, settings, answer):
    assert answer in refused(prepared_dir=prepared, **settings)


# converted weights, scored as the public code scores them


GEN1_LABELS_US = 600_000 + 250_000 * np.arange(5)  # as far apart as those of Gen1
SIZE = ("dataset.height=64", "dataset.width=96")


@pytest.fixture(scope="module")
def converted(golden_dir, tmp_path_factory):
    """The weights of a golden file, converted. Their boxes are made large enough to be scored."""
    with np.load(golden_dir / "model_small.npz") as recorded:
        names = [name for name in recorded.files if name.startswith("sd/")]
        official = {name.removeprefix("sd/"): torch.from_numpy(recorded[name]) for name in names}
    for name in official:
        if "reg_preds" in name and name.endswith("bias"):
            official[name][2:] += 1.6  # logarithm of width and height
    spec = build_spec(DatasetConfig("gen1", height=64, width=96))
    found = convert_official(official, spec, None, head_dim=8)
    path = tmp_path_factory.mktemp("converted") / "weights.ckpt"
    write_checkpoint(path, found.detector, found)
    return path


def dataset_in(raw):
    return DatasetConfig("gen1", str(raw), height=64, width=96)


def planned(converted, raw):
    """The detector, and the test recording in windows of the training."""
    file, loading = WeightsFile(str(converted), "float32"), DataConfig(workers=0)
    run = evaluating.prepare(
        file, *file.read_with_digest(), dataset_in(raw), loading, PostprocessConfig(), EvaluationConfig()
    )
    (sequence,) = plan_rates(run)[0][0].sequences
    return run, sequence


def detections_of_the_public_code(converted, raw) -> list[Detections]:
    """Thresholds and suppression by objectness times class; the score is the class alone."""
    run, sequence = planned(converted, raw)
    streams = Streams(run.checkpoint.detector, 50_000, run.checkpoint.model_config.memory_chunk)
    hist = torch.from_numpy(sequence.read(0, len(sequence.windows)))[:, None]
    dt_us = torch.from_numpy(sequence.windows.dt_us)[:, None]
    steps = torch.from_numpy(np.unique(sequence.labels.window_index))
    predictions = streams.push(hist, dt_us, torch.stack([steps, 0 * steps], dim=1), [0], [True])
    frames = []
    for rows, t_us in zip(predictions.rows, GEN1_LABELS_US.tolist(), strict=True):
        objectness, (best, class_id) = rows[:, 4].sigmoid(), rows[:, 5:].sigmoid().max(dim=1)
        xyxy, product = cxcywh_to_xyxy(rows[:, :4]), objectness * best
        chosen = (product >= 0.001).nonzero()[:, 0]
        chosen = chosen[batched_nms(xyxy[chosen], product[chosen], class_id[chosen], 0.45)]
        order = chosen[best[chosen].argsort(descending=True, stable=True)]
        frames.append(Detections(xyxy[order].numpy(), best[order].numpy(), class_id[order].numpy(), t_us))
    return frames


def write_labels(path, frames=()) -> None:
    """At each label time one large box, and those of detections with every third score."""
    rows, classes = [(t_us, 20, 10, 40, 40) for t_us in GEN1_LABELS_US], [0] * len(GEN1_LABELS_US)
    for frame in frames:
        boxes = xyxy_to_ltwh(frame.xyxy)
        is_large = (boxes[:, 2:] >= 15).all(axis=1) & (np.hypot(boxes[:, 2], boxes[:, 3]) >= 31)
        for number in np.flatnonzero(is_large)[::3]:
            rows.append((frame.t_us, *np.rint(boxes[number])))
            classes.append(int(frame.class_id[number]))
    order = np.argsort([row[0] for row in rows], kind="stable")
    boxes = boxes_of(*(rows[n] for n in order), still_us=-1)
    boxes["class_id"] = np.array(classes)[order]
    write_boxes(path, boxes)


def test_every_setting_that_changes_ap_stands_beside_it(converted, tmp_path):
    """docs/evaluation.md lists them: those that are not in the checkpoint, at other values than the defaults."""
    raw = tmp_path / "raw"
    (raw / "test").mkdir(parents=True)
    write_dat(raw / "test/a_td.dat", random_events(30_000, 0, 1_700_000, 40_000, (64, 96)), 64, 96)
    write_labels(raw / "test/a_bbox.npy")
    where = f"checkpoint={converted}", "dataset=gen1", *SIZE, f"dataset.raw_dir={raw}", "bootstrap=0", "data.workers=0"
    changed = {
        "score": {
            "postprocess.score=objectness_times_class": "objectness_times_class, from 0.01",
            "postprocess.min_score=0.01": "postprocess.min_score=0.01; after the training",
            "postprocess.nms_iou=0.6": "non-maximum suppression per class at IoU 0.6",
            "postprocess.max_detections=5": "at most 5 per frame",
        },
        "data": {"dataset.repair=true": "faulty recordings repaired", "dataset.label_offset_us=7": "7 us added"},
        "windows": {"window=shrink": "shrink, counted from raw", "grid=free": "free grid"},
        "time step": {"step_scale=1": "1 whatever the rate"},
        "memory": {"memory=carried": "carried"},
        "precision": {"precision=bf16": "bf16 on cpu"},
        "still objects": {"still_ms=150": "no motion for 150 ms"},
        "classes": {"class_map={}": "evaluation.class_map={}"},
    }
    words = [word for by_word in changed.values() for word in by_word]
    printed = []
    for more in ([], words):
        assert cli.main(["evaluate", *where, *more, f"out={tmp_path / 'out'}"]) == 0
        printed.append(json.loads((tmp_path / "out/evaluation.json").read_text())["conditions"])
    usual, other = printed
    for name, by_word in changed.items():
        for word, text in by_word.items():
            assert text in other[name] and other[name] != usual.get(name), word
    rules = "boxes and detections up to 0.5 s or with a side under 10 px or with a diagonal under 30 px (96 x 64 frame)"
    assert rules in usual["scored"] and "best 100 detections of each class" in usual["scored"]
    assert "96 x 64 pixels, padded with zeros at the right and the bottom" in usual["frames"]


def test_converted_weights_have_the_ap_of_the_public_code(converted, tmp_path):
    raw = tmp_path / "raw"
    (raw / "test").mkdir(parents=True)
    write_dat(raw / "test/a_td.dat", random_events(30_000, 0, 1_700_000, 40_000, (64, 96)), 64, 96)
    write_labels(raw / "test/a_bbox.npy")
    frames = detections_of_the_public_code(converted, raw)
    write_labels(raw / "test/a_bbox.npy", frames)
    _, sequence = planned(converted, raw)
    labels = scored_labels(sequence.labels, GEN1_SPEC)
    expected = plain_coco([("a", labels, frames)]).stats[0]

    said: list[str] = []

    def ap(score: str | None = None) -> tuple[float, str]:
        where = {"dataset": dataset_in(raw), "data": DataConfig(workers=0), "bootstrap": 0, "precision": "float32"}
        report = evaluate(converted, **where, postprocess=PostprocessConfig(score=score), say=said.append)
        return report.rows[0]["AP"], report.conditions["score"]

    assert read_checkpoint(converted).scored_as.score == "class_only"
    found, printed = ap()
    assert found == pytest.approx(expected, abs=1e-6) and found > 0.01
    assert printed.startswith("class_only")
    other, printed = ap("objectness_times_class")
    assert other != pytest.approx(found, abs=1e-4)
    assert "were scored with class_only" in printed and "were scored with class_only" in " ".join(said)
