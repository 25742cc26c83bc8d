"""An interrupted evaluation takes the rates that were done, never those of another one, and any processes agree."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events, write_labelled
from user_errors import raises

from rvtssm.datasets import DataConfig
from rvtssm.evaluation import detector_run
from rvtssm.evaluation.detector_run import detector_processes, stream
from rvtssm.evaluation.evaluating import evaluate
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from tests.evaluation.test_evaluate import SPEC

NUM_RECORDINGS = 3
SETTINGS = {
    "hz": [20, 40],
    "window": "slide",
    "bootstrap": 5,
    "precision": "float32",
    "postprocess": PostprocessConfig(min_score=0),
    "data": DataConfig(eval_batch_size=1, workers=0),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory, live_checkpoint) -> Path:
    """Weights, and recordings of different lengths and contents, to which the weights lead."""
    folder = tmp_path_factory.mktemp("evaluated")
    for number in range(NUM_RECORDINGS):
        events = random_events(2_000, number, 590_000 + 200_000 * number, 10_000)
        boxes = boxes_of(*((500_000 + 50_000 * label, 2, 3, 20, 25) for label in range(4)), still_us=-1)
        write_labelled(folder / "raw/test", f"{number}", events, boxes)
    trained = replace(live_checkpoint(num_blocks=(0, 0, 0, 1)), spec=SPEC, raw_dir=str(folder / "raw"))
    write_checkpoint(folder / "model.ckpt", trained.detector, trained)
    return folder / "model.ckpt"


@pytest.fixture(scope="module", autouse=True)
def equal_threads(without_pictures):
    """All processes have equally many threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        yield


def numbers(weights: Path, out: Path, **changes) -> dict:
    """All that an evaluation measures."""
    evaluate(weights, out=out, **{**SETTINGS, **changes})
    found = json.loads((out / "evaluation.json").read_text())
    return {name: found[name] for name in ("rows", "drop", "breakdown")}


def interrupt_after(monkeypatch, number: int, interrupt: Callable[[], object]) -> list[int]:
    """Interrupt evaluations when they begin a batch after `number` others; return the steps of those that they run."""
    run: list[int] = []

    def look_and_stream(detector, loader, **options):
        if len(run) == number:
            interrupt()
        run.append(len(loader.dataset.sequences[0].windows))
        return stream(detector, loader, **options)

    monkeypatch.setattr(detector_run, "stream", look_and_stream)
    return run


def stop() -> None:
    raise KeyboardInterrupt


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(weights, tmp_path_factory):
    """An evaluation that was not interrupted: its numbers and its batches."""
    with pytest.MonkeyPatch.context() as patch:
        run = interrupt_after(patch, -1, stop)
        return numbers(weights, tmp_path_factory.mktemp("whole")), run


def evaluate_and_die(weights: Path, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, NUM_RECORDINGS + 1, die)
        numbers(weights, out)


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_interrupted_evaluation_takes_the_rates_that_were_done(
    weights, whole, tmp_path, prepared, monkeypatch, is_killed
):
    expected, every = whole
    if is_killed:
        job = prepared.Process(target=evaluate_and_die, args=(weights, tmp_path))
        job.start()
        job.join()
        assert job.exitcode == -signal.SIGKILL
    else:
        interrupt_after(monkeypatch, NUM_RECORDINGS + 1, stop)
        with pytest.raises(KeyboardInterrupt):
            numbers(weights, tmp_path)
    again = interrupt_after(monkeypatch, -1, stop)
    assert numbers(weights, tmp_path) == expected
    assert len(every) == 2 * NUM_RECORDINGS and again == every[NUM_RECORDINGS:]
    assert "unfinished" not in json.loads((tmp_path / "evaluation.json").read_text())


@pytest.mark.parametrize("change", ["setting", "weights", "recording", "tracks"])
def test_rates_of_another_evaluation_are_not_taken(weights, whole, tmp_path, monkeypatch, change):
    _, every = whole
    interrupt_after(monkeypatch, NUM_RECORDINGS, stop)
    with pytest.raises(KeyboardInterrupt):
        numbers(weights, tmp_path)
    recording = weights.parent / "raw/test/0_td.dat"
    times_ns = recording.stat().st_atime_ns, recording.stat().st_mtime_ns
    if change == "recording":
        os.utime(recording)
    labels = weights.parent / "raw/test/0_bbox.npy"
    content = labels.read_bytes()
    if change == "tracks":
        boxes = np.load(labels)
        boxes["track_id"] += 1
        np.save(labels, boxes)
    if change == "weights":
        trained = read_checkpoint(weights)
        with torch.no_grad():
            next(trained.detector.parameters()).add_(1e-3)
        weights = tmp_path / "other.ckpt"
        write_checkpoint(weights, trained.detector, trained)
    run = interrupt_after(monkeypatch, -1, stop)
    numbers(weights, tmp_path, **({"postprocess": PostprocessConfig(nms_iou=0.6)} if change == "setting" else {}))
    os.utime(recording, ns=times_ns)
    labels.write_bytes(content)
    assert run == every


def test_rates_of_another_latency_in_the_same_file_are_not_taken(weights, tmp_path):
    told = tmp_path / "prediction.json"
    for latency_ms in (1, 120):
        told.write_text(json.dumps({"step_ms": {"p50": latency_ms}, "windows_per_call": 1}))
        settings = {"streaming": True, "latency_from": str(told), "time_shifts_ms": [], "window": "shrink"}
        found = numbers(weights, tmp_path / "out", **settings)
        assert [row["latency_ms"] for row in found["rows"]] == [latency_ms] * 2


@pytest.mark.distributed
@pytest.mark.usefixtures("prepared_workers")
@pytest.mark.parametrize("name", ["evaluation.json", "report.html", "scored/20hz_slide_images.csv"])
def test_a_file_of_someone_else_is_refused_before_a_rate_is_run(weights, tmp_path, monkeypatch, name):
    monkeypatch.setattr("rvtssm.evaluation.evaluating.score_rate", lambda *_: pytest.fail("a rate was run"))
    (tmp_path / "scored").mkdir()
    (tmp_path / name).write_text("[]")
    with raises("file.exists", name):
        evaluate(weights, out=tmp_path, **SETTINGS, formats=["csv"])
    assert (tmp_path / name).read_text() == "[]"


def test_several_processes_give_equal_numbers(weights, whole, tmp_path):
    assert numbers(weights, tmp_path, workers=2) == whole[0]


def test_each_process_has_its_threads_and_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(detector_run, "num_usable_cores", lambda: 12)
    monkeypatch.setattr(detector_run, "Processes", lambda number, environments: environments)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    expected = [{"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": gpu} for gpu in "353"]
    assert detector_processes(3) == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert detector_processes(3) == [{**each, "OMP_NUM_THREADS": "7"} for each in expected]


@pytest.mark.gpu
def test_processes_that_share_a_gpu_give_the_numbers_of_one(weights, tmp_path):
    assert numbers(weights, tmp_path / "one") == numbers(weights, tmp_path / "two", workers=2)
