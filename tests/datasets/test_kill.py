"""Killed while it writes, a run leaves no process, and the next one completes it and leaves nothing else."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from event_examples import SPEC
from test_prepare_dataset import contents, write_recording

from rvtssm.contrib.demo.generate_recordings import SYNTHETIC, generate_dataset
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.datasets import PreprocessConfig, sections
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.records import WindowSettings

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")

SECTION_BYTES = 200_000  # so that the long recording is cut, and the others are done whole
NAMES = ["long", "a", "b", "c"]
PREPROCESS = PreprocessConfig(splits=("train",), workers=2)
GENERATE = SyntheticConfig(num_train=3, num_val=1, num_test=0, duration_s=0.5, workers=2)


def preprocessing(folder: Path, config=PREPROCESS):
    return preprocess_dataset, (SPEC, folder / "raw", folder / "out", WindowSettings(4_000), config)


def generating(folder: Path, config=GENERATE):
    return generate_dataset, (config, folder / "out", SYNTHETIC.sized(60, 80))


def workers_below(folder: Path) -> list[int]:
    """The workers of the run in this folder, which have its name in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # gone meanwhile, or of somebody else
            continue
        if f"KILL_TEST={folder}".encode() in environment and state != "Z":
            found.append(int(entry.name))
    return sorted(found)


def run_in(folder: Path, task) -> None:
    os.environ["KILL_TEST"] = str(folder)
    sections.SECTION_BYTES = SECTION_BYTES
    finish(task)


def run_and_kill(context, task, folder: Path, victim: signal.Signals | str) -> int | None:
    """Start a run, signal it or kill one of its workers when it begins its first file; returns its exit code."""
    process = context.Process(target=run_in, args=(folder, task))
    process.start()
    while process.is_alive() and not any((folder / "out").glob("*/*")):
        time.sleep(0.005)
    if isinstance(victim, signal.Signals):
        os.kill(process.pid, victim)
    else:
        # On a busy machine, the run may have ended before its workers are seen here.
        for worker in workers_below(folder)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    process.join(600)
    deadline = time.monotonic() + 300
    while workers_below(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not workers_below(folder)
    return process.exitcode


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What runs that nobody disturbs make."""
    made = []
    for begin in (write_raw, lambda folder: None):
        folder = tmp_path_factory.mktemp("wanted")
        begin(folder)
        finish(preprocessing(folder, replace(PREPROCESS, workers=1)) if not made else generating(folder))
        made.append(contents(folder / "out"))
    return made


def write_raw(folder: Path) -> None:
    for name in NAMES:
        write_recording(folder / "raw" / "train", name, num_events=300_000 if name == "long" else 60_000)


def finish(task):
    function, arguments = task
    return function(*arguments, progress=False)


@pytest.mark.parametrize("victim", [signal.SIGKILL, signal.SIGINT, "worker"])
def test_preprocess(tmp_path, prepared, wanted, victim):
    write_raw(tmp_path)
    code = run_and_kill(prepared, preprocessing(tmp_path), tmp_path, victim)
    found = contents(tmp_path / "out") if (tmp_path / "out").exists() else {}
    complete = {name: data for name, data in found.items() if not Path(name).name.startswith(".")}
    assert all(wanted[0][name] == data for name, data in complete.items())
    if victim != signal.SIGKILL:
        assert complete == found  # it cleaned up itself
    if victim == "worker":
        assert code == (1 if len(complete) < len(NAMES) else 0)
    summary = finish(preprocessing(tmp_path, replace(PREPROCESS, workers=1)))
    assert len(summary.skipped) == len(complete) and not summary.failed
    assert contents(tmp_path / "out") == wanted[0]


def work_for(scheduler: str) -> None:
    """Be a worker of a cluster."""
    from distributed import Worker

    async def work() -> None:
        async with Worker(scheduler, nthreads=1) as worker:
            await worker.finished()

    asyncio.run(work())


@contextlib.contextmanager
def cluster_of_two(context):
    """The address of a scheduler, and its two workers."""
    import distributed

    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        workers = [context.Process(target=work_for, args=(cluster.scheduler_address,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        try:
            with distributed.Client(cluster) as client:
                client.wait_for_workers(2, timeout=60)
            yield cluster.scheduler_address, workers
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def test_preprocess_on_a_cluster(tmp_path, prepared, monkeypatch, wanted):
    pytest.importorskip("distributed")
    monkeypatch.setattr(sections, "SECTION_BYTES", SECTION_BYTES)
    write_raw(tmp_path)
    with cluster_of_two(prepared) as (scheduler, workers):
        task = preprocessing(tmp_path, replace(PREPROCESS, scheduler=scheduler))
        assert run_and_kill(prepared, task, tmp_path, signal.SIGKILL) == -signal.SIGKILL
        workers[0].kill()
        found = contents(tmp_path / "out") if (tmp_path / "out").exists() else {}
        assert all(wanted[0][name] == data for name, data in found.items() if not Path(name).name.startswith("."))
        summary = finish(task)
    assert sorted(summary.written + summary.skipped) == sorted(f"train/{name}" for name in NAMES)
    assert contents(tmp_path / "out") == wanted[0]


def test_generate(tmp_path, prepared, wanted):
    run_and_kill(prepared, generating(tmp_path), tmp_path, signal.SIGKILL)
    complete = [name for name in contents(tmp_path / "out") if name.endswith("_bbox.npy")]
    assert len(finish(generating(tmp_path, replace(GENERATE, workers=1)))) == 4 - len(complete)
    assert contents(tmp_path / "out") == wanted[1]
