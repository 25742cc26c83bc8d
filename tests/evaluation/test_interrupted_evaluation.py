"""An evaluation goes on where it was interrupted, never reads outputs of another one, and any processes agree."""

import json
import os
import pickle
import platform
import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events
from lightning.fabric.plugins.environments import TorchElasticEnvironment

from rvtssm.cli import evaluate as evaluate_verb
from rvtssm.cli import main as cli
from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.loading_config import DataConfig
from rvtssm.detection.stream import stream
from rvtssm.evaluation.batch_workers import Ranks, RecordingBatch, ThisProcess, detector_processes
from rvtssm.evaluation.kept_outputs import kept_folder, outputs_digest, read_outputs, write_outputs
from rvtssm.evaluation.shared_weights import SharedWeights
from rvtssm.events.labels import write_boxes
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.model_config import ModelConfig, PostprocessConfig
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections, WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import SameProcess
from tests.evaluation.test_evaluate import SPEC
from tests.killed import killed_at_each_call
from tests.training.conftest import torchrun_variables

NUM_RECORDINGS = 3
WORDS = (
    "evaluation.hz=[20,40]",
    "evaluation.window=slide",
    "postprocess.min_score=0",
    "bootstrap=5",
    "data.eval_batch_size=1",
    "data.workers=0",
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Weights, and recordings of different lengths and contents, to which the weights lead."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "raw" / "test").mkdir(parents=True)
    for number in range(NUM_RECORDINGS):
        events = random_events(2_000, number, 590_000 + 200_000 * number, 10_000)
        write_dat(folder / f"raw/test/{number}_td.dat", events, 48, 64)
        boxes = boxes_of(*((500_000 + 50_000 * label, 2, 3, 20, 25) for label in range(4)), still_us=-1)
        write_boxes(folder / f"raw/test/{number}_bbox.npy", boxes)
    model = ModelConfig(size="custom", embed_dim=8, head_dim=8, num_blocks=(0, 0, 0, 1), fpn_blocks=0)
    settings = WindowSettings(50_000, None, "exact", 10, 10)
    meta = CheckpointMeta(SPEC, model, TemporalConfig(), settings, str(folder / "raw"))
    write_checkpoint(folder / "model.ckpt", meta.build(), meta)
    return folder / "model.ckpt"


@pytest.fixture(scope="module", autouse=True)
def equal_threads(without_pictures):
    """All processes have equally many threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        yield


def evaluate(weights: Path, out: Path, *words: str) -> int:
    return cli.main(["evaluate", f"checkpoint={weights}", f"out={out}", *WORDS, *words])


def numbers(out: Path) -> dict:
    """All that was measured."""
    found = json.loads((out / "evaluation.json").read_text())
    return {name: found[name] for name in ("rates", "intervals", "differences", "breakdown")}


def kept(out: Path) -> dict[str, bytes]:
    """The outputs of an evaluation that did not remove them."""
    found = {path.name: path.read_bytes() for path in kept_folder(out).iterdir()}
    assert len(found) == 2 * NUM_RECORDINGS and len(set(found.values())) == len(found)
    return found


def interrupt_after(monkeypatch, number: int, interrupt: Callable[[], object]) -> list[tuple[str, ...]]:
    """Interrupt evaluations when they begin a batch after `number` others; return the batches that they run."""
    run: list[tuple[str, ...]] = []

    def look_and_stream(detector, loader, **options):
        if len(run) == number:
            interrupt()
        run.append(tuple(sequence.name for sequence in loader.dataset.sequences))
        return stream(detector, loader, **options)

    monkeypatch.setattr("rvtssm.evaluation.batch_workers.stream", look_and_stream)
    return run


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(weights, tmp_path_factory):
    """An evaluation that was not interrupted: its numbers, its batches and its kept outputs."""
    with pytest.MonkeyPatch.context() as patch:
        run = interrupt_after(patch, -1, stop)
        patch.setattr(evaluate_verb, "remove_kept", lambda out: None)
        out = tmp_path_factory.mktemp("whole")
        assert evaluate(weights, out) == 0
    return numbers(out), run, kept(out)


def test_all_passes_run_together_and_nothing_twice(weights, tmp_path, monkeypatch):
    """The steps of 50 ms are the same ones whether windows slide or shrink; without memory they are others."""
    runs: list[list[Path]] = []
    run = ThisProcess.run

    def look(self, batches, progress):
        runs.append([batch.path for batch in batches])
        lengths = [batch.num_chunks for batch in batches]
        assert lengths == sorted(lengths, reverse=True)
        run(self, batches, progress)

    monkeypatch.setattr(ThisProcess, "run", look)
    assert evaluate(weights, tmp_path, "evaluation.window=both", "evaluation.ablate_memory=true") == 0
    (paths,) = runs
    assert len(paths) == len(set(paths)) == 4 * NUM_RECORDINGS  # 20 Hz, 20 Hz without memory, and twice 40 Hz


def test_an_interrupted_evaluation_goes_on(weights, whole, tmp_path, monkeypatch):
    expected, every, _ = whole
    first = interrupt_after(monkeypatch, NUM_RECORDINGS + 1, stop)
    assert evaluate(weights, tmp_path) == 130
    assert not (tmp_path / "evaluation.json").exists()
    second = interrupt_after(monkeypatch, -1, stop)
    assert evaluate(weights, tmp_path) == 0
    assert len(every) == 2 * NUM_RECORDINGS and first + second == every  # each batch once
    assert numbers(tmp_path) == expected and not kept_folder(tmp_path).exists()


def evaluate_and_die(weights: Path, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
        evaluate(weights, out)


def test_a_killed_evaluation_goes_on(weights, whole, tmp_path, prepared, monkeypatch):
    expected, every, _ = whole
    job = prepared.Process(target=evaluate_and_die, args=(weights, tmp_path))
    job.start()
    job.join()
    assert job.exitcode == -signal.SIGKILL
    run = interrupt_after(monkeypatch, -1, stop)
    assert evaluate(weights, tmp_path) == 0
    assert run == every[2:] and numbers(tmp_path) == expected


@pytest.mark.parametrize(
    "change",
    [
        "postprocess.nms_iou=0.6",
        "step_scale=1",
        "precision=bf16",
        "data.eval_chunk_length=3",
        "data.eval_batch_size=2",
        "weights",
        "description",
        "threads",
        "recording",
        "source code",
    ],
)
def test_outputs_of_another_evaluation_are_not_read(weights, whole, tmp_path, monkeypatch, change):
    """A file is found by its name. An evaluation that has all of them runs nothing, see above."""
    _, every, files = whole
    kept_folder(tmp_path).mkdir()
    for name, content in files.items():
        (kept_folder(tmp_path) / name).write_bytes(content)
    recording = weights.parent / f"raw/test/{every[0][0]}_td.dat"
    times_ns = recording.stat().st_atime_ns, recording.stat().st_mtime_ns
    if change == "recording":
        os.utime(recording)
    if change == "source code":
        monkeypatch.setattr("rvtssm.evaluation.kept_outputs.own_source_code", lambda: b"another")
    if change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    if change in ("weights", "description"):
        trained = meta = read_checkpoint(weights)
        if change == "weights":
            with torch.no_grad():
                next(trained.detector.parameters()).add_(1e-3)
        else:
            meta = replace(trained, model_config=replace(trained.model_config, head_dim=4))
        weights = tmp_path / "other.ckpt"
        write_checkpoint(weights, trained.detector, meta)
    run = interrupt_after(monkeypatch, 0, stop)
    assert evaluate(weights, tmp_path, *([change] if "=" in change else [])) == 130
    assert not run
    os.utime(recording, ns=times_ns)


def test_modules_beside_a_plugin_belong_to_the_source_code(tmp_path):
    (tmp_path / "plugin.py").touch()
    before = outputs_digest({}, [str(tmp_path / "plugin.py")], [])
    (tmp_path / "imported_by_it.py").write_text("x = 1")
    assert outputs_digest({}, [str(tmp_path / "plugin.py")], []) != before


@pytest.mark.parametrize(("change", "number"), [("nothing", 2), ("machine", 4), ("damage", 4)])
def test_a_measured_latency_is_kept(weights, tmp_path, monkeypatch, change, number):
    """Without it, an evaluation that goes on would take other steps."""
    measured = count()
    monkeypatch.setattr("rvtssm.evaluation.rates.measured_latency_ms", lambda *_: float(next(measured)))
    interrupt_after(monkeypatch, 0, stop)
    for _ in range(2):
        assert evaluate(weights, tmp_path, "streaming=true", "window=slide") == 130
        if change == "machine":
            monkeypatch.setattr(platform, "node", lambda: "another")
        if change == "damage":
            for path in kept_folder(tmp_path).glob("*.json"):
                path.write_text("")
    assert next(measured) == number


def test_kept_outputs_are_whole_or_absent(tmp_path):
    def found(times, count: int) -> list[Detections]:
        rng = np.random.default_rng(count)
        return [
            Detections(rng.random((count, 4), np.float32), rng.random(count, np.float32), np.arange(count), t_us)
            for t_us in times
        ]

    def same(outputs: list[list[Detections]]) -> list:
        return [
            [[*map(np.ndarray.tolist, (each.xyxy, each.score, each.class_id)), each.t_us] for each in frames]
            for frames in outputs
        ]

    outputs = [found((3, 7), 2), [], found((1,), 0)]
    for folder in killed_at_each_call(tmp_path, Path.mkdir, lambda folder: write_outputs(folder / "a.npz", outputs)):
        read = read_outputs(folder / "a.npz", 3)
        assert read is None or same(read) == same(outputs)
    assert read is not None
    content = (folder / "a.npz").read_bytes()
    flags = content.index(b"PK\x01\x02") + 8  # of the first file in the directory of the archive
    encrypted = content[:flags] + b"\x01" + content[flags + 1 :]
    unknown_compression = content[: flags + 2] + b"\x63" + content[flags + 3 :]
    for damaged in (
        *(b"", content[:-30], content[:200] + bytes(40) + content[240:], b"nothing"),
        *(encrypted, unknown_compression),
    ):
        (folder / "a.npz").write_bytes(damaged)
        assert read_outputs(folder / "a.npz", 3) is None


class Pickled(SameProcess):
    """Runs tasks in this process as others would get them."""

    def __init__(self, num_workers: int, environments: object) -> None:
        self.num_workers = num_workers

    def submit(self, function, /, *arguments):
        function, arguments = pickle.loads(pickle.dumps((function, arguments)))
        return super().submit(function, *arguments)


def test_several_processes_give_equal_numbers(weights, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_verb, "remove_kept", lambda out: None)
    monkeypatch.setattr("rvtssm.evaluation.batch_workers.Processes", Pickled)
    assert evaluate(weights, tmp_path, "workers=3") == 0
    assert (numbers(tmp_path), kept(tmp_path)) == (whole[0], whole[2])


def evaluate_as_rank(weights: Path, out: Path, environment: dict[str, str]) -> None:
    """Evaluate in a process of its own, as torchrun would start it."""
    os.environ.update(environment)
    evaluate_verb.remove_kept = lambda out: None
    raise SystemExit(evaluate(weights, out, *(["checkpoint=/nowhere.ckpt"] if out.name == "refused" else [])))


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "codes"), [("ranks", [0, 0]), ("refused", [2, 0])])
def test_processes_of_a_launcher_give_equal_numbers(weights, whole, tmp_path, prepared, name, codes):
    jobs = []
    for environment in torchrun_variables(2):
        jobs.append(prepared.Process(target=evaluate_as_rank, args=(weights, tmp_path / name, environment)))
        jobs[-1].start()
    for job in jobs:
        job.join(timeout=120)
    found = [job.exitcode for job in jobs]
    for job in jobs:
        job.kill()
    assert found == codes
    if name == "ranks":
        assert (numbers(tmp_path / name), kept(tmp_path / name)) == (whole[0], whole[2])


@pytest.fixture
def by_torchrun(monkeypatch):
    """A function: makes this process the first one of several that torchrun has started."""

    def begin(devices: int) -> None:
        for name, value in torchrun_variables(devices)[0].items():
            monkeypatch.setenv(name, value)

    return begin


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workers=null"], "a launcher has started 3 processes; leave evaluation.workers out"),
        ([], "not all of the 3 processes of the launcher connected (1/3 clients joined); start them again"),
    ],
)
def test_processes_that_cannot_work_together_are_told_why(
    weights, tmp_path, monkeypatch, capsys, by_torchrun, words, message
):
    def wait(*_, **__):
        raise torch.distributed.DistStoreError("1/3 clients joined\nC++ frames")

    by_torchrun(3)
    monkeypatch.setattr(torch.distributed, "init_process_group", wait)
    assert evaluate(weights, tmp_path, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("failing", "error", "expected", "message"),
    [
        (
            "rvtssm.evaluation.batch_workers.run_batch",
            OSError("a: no such file"),
            ValueError,
            "process 0: a: no such file",
        ),
        ("rvtssm.evaluation.batch_workers.run_batch", KeyError(7), RuntimeError, "KeyError: 7"),
        ("torch.distributed.all_gather_object", RuntimeError("closed\nframes"), ValueError, "has ended .closed.; the"),
    ],
)
def test_an_error_of_a_process_of_a_launcher(
    weights, tmp_path, monkeypatch, by_torchrun, failing, error, expected, message
):
    def fail(*_, **__):
        raise error

    by_torchrun(1)
    monkeypatch.setattr(RecordingBatch, "num_chunks", 1)
    batch = RecordingBatch(
        SharedWeights(str(weights), "float32", (), ""),
        [],
        tmp_path / "a.npz",
        DatasetConfig(),
        DataConfig(),
        PostprocessConfig(),
        memory_chunk=None,
        step_scale=None,
    )
    with pytest.raises(expected, match=message), Ranks(TorchElasticEnvironment()) as ranks:
        ranks.checkpoint = read_checkpoint(weights)
        monkeypatch.setattr(failing, fail)
        ranks.run([batch], "")
    assert not torch.distributed.is_initialized()


def test_each_process_has_its_threads_and_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("rvtssm.evaluation.batch_workers.num_usable_cores", lambda: 12)
    monkeypatch.setattr("rvtssm.evaluation.batch_workers.Processes", lambda number, environments: environments)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    expected = [{"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": gpu} for gpu in "353"]
    assert detector_processes(3) == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert detector_processes(3) == [{**each, "OMP_NUM_THREADS": "7"} for each in expected]


class Dying(Pickled):
    """Its processes die."""

    def submit(self, function, /, *arguments):
        raise BrokenProcessPool


def test_a_process_that_died_ends_the_evaluation(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rvtssm.evaluation.batch_workers.Processes", Dying)
    assert evaluate(weights, tmp_path, "workers=2") == 2
    assert "a worker process ended" in capsys.readouterr().err


def test_processes_refuse_weights_that_were_replaced(weights):
    with pytest.raises(UserError, match="was replaced while it was used; run again, or"):
        SharedWeights(str(weights), "float32", (), sha256="of the file that was there before").read()


@pytest.mark.gpu
def test_processes_that_share_a_gpu_give_the_numbers_of_one(weights, tmp_path):
    assert evaluate(weights, tmp_path / "one") == 0
    assert evaluate(weights, tmp_path / "two", "evaluation.workers=2") == 0
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
