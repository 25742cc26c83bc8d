"""Processes that train together are one: the same weights, the same numbers, the same end and the same new beginning.

`whole` trains in two processes what one process trains with the batch of both: the law that ties the rest together.
Processes have the variables that torchrun or srun would write; no test starts either of them.
"""

import contextlib
import fcntl
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TextIO

import pytest
import torch

from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint, named_files, read_states
from tests.training.conftest import BATCH, BOUND_S, shares, srun_variables
from tests.training.watched import train_as_script

NUM_STEPS = 5
BOUND_TO_END_S = 300  # for the others, when the first process has ended
# in float64, and with nothing that depends on what else is in a batch, sums do not care how they are split
EXACT = ("training.precision=float64", "training.freeze_batchnorm=true", "optim.clip_value=0.05", "optim.h2_weight=0.1")
SETTINGS = (*EXACT, f"training.steps={NUM_STEPS}", "training.checkpoint_every=2", "sampling.chunk_length=3")
# untrained weights find nothing with certainty: every box counts, so that there is something to compare
FOUND = ("postprocess.min_score=0", "data.eval_batch_size=1")

pytestmark = pytest.mark.distributed


def is_free(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run_as_script(context: ForkServerContext, out: Path, overrides: list[str]) -> None:
    """Run to the end, without an error, a job that starts its other processes itself and leaves none behind."""
    job = context.Process(target=train_as_script, args=(out, overrides))
    job.start()
    try:
        job.join(timeout=BOUND_S)
        assert job.exitcode == 0, (out / "script.txt").read_text()
        until = time.monotonic() + BOUND_TO_END_S
        with open(out / "script.txt") as locked:
            while not is_free(locked):
                assert time.monotonic() < until, "a process was left behind"
                time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(toy_data, ranks, tmp_path_factory) -> Path:
    """The folder of a run of two processes that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert ranks(out, *toy_data, *SETTINGS, *FOUND, "optim.scale_with_batch=true") == [0, 0]
    return out


@pytest.fixture(scope="module")
def alone(toy_config, tmp_path_factory) -> Path:
    """The folder of the same run in one process."""
    out = tmp_path_factory.mktemp("alone")
    train(toy_config(out, *SETTINGS, *FOUND, f"sampling.batch_size={BATCH}"))
    return out


def notes(out: Path) -> list[dict]:
    paths = sorted(out.glob("rank*.pt"))
    return [torch.load(path, weights_only=False) for path in paths]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(last_checkpoint(out))["state_dict"]


def processes(out: Path) -> list[dict]:
    """What each process stores, by rank."""
    path = last_checkpoint(out)
    stored = load_file(path)["processes"]
    return [read_states(path, stored, rank) for rank in range(len(stored))]


def streams(out: Path) -> list:
    """The stored states of all slots of all processes, by rank and slot, each as one tensor."""
    states = []
    for process in processes(out):
        stored = process["streams"]
        leaves = [torch.view_as_real(leaf).reshape(len(stored["steps"]), -1) for leaf in stored["state"]]
        by_slot = dict(zip(stored["steps"], torch.cat(leaves, dim=1), strict=True))
        states += [by_slot[slot] for slot in sorted(by_slot)]
    return states


def test_two_processes_train_as_one(whole, alone, logged):
    found, wanted = weights(whole), weights(alone)
    assert load_file(last_checkpoint(whole))["global_step"] == NUM_STEPS
    first, second = (found["weights"] for found in notes(whole))
    assert all(torch.equal(first[name], value) for name, value in second.items())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)
        assert value.dtype in (torch.float64, torch.complex128, torch.int64), name
    found_log, log = logged(whole), logged(alone)
    for step in range(NUM_STEPS):
        for name in ("total", "iou", "objectness", "class", "h2"):
            losses = float(found_log[step][f"train/{name}"]), float(log[step][f"train/{name}"])
            assert losses[0] == pytest.approx(losses[1], rel=1e-6), (step, name)
    assert not any(value.any() for name, value in found.items() if name.endswith("running_mean"))  # frozen
    # each process has its share of the streams, in order, and random numbers of its own
    first, second = (process["random"] for process in processes(whole))
    assert not torch.equal(first, second)
    assert len(streams(alone)) == BATCH // 2
    for state, wanted_state in zip(streams(whole), streams(alone), strict=True):
        torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-8)


def test_each_process_writes_its_own_states(whole):
    first, second = load_file(last_checkpoint(whole))["processes"]
    assert first["streams"]["steps"] and second == f"step_{NUM_STEPS}_process_1.pt"
    needed = named_files(last_checkpoint(whole)) | named_files(best_checkpoint(whole))
    assert {path.name for path in last_checkpoint(whole).parent.glob("*.pt")} == needed


def test_what_there_is_to_say_is_said_once(whole):
    told = [(whole / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    for sentence in ("trained 0.", "learning rate 0.0002 x sqrt(8 / 8) = 0.0002: 8 chunks per step"):
        assert [text.count(sentence) for text in told] == [1, 0], sentence


def test_what_two_processes_read_is_what_one_reads(whole, alone, toy_config):
    """Slots keep their streams, batches their size, and each chunk is read once, over the epoch and both processes."""
    requests = [found["requests"] for found in notes(whole)]
    assert [len(found) for found in requests] == [NUM_STEPS, NUM_STEPS]
    assert {len(batch) for found in requests for batch in found} == {BATCH // 2}
    first_epoch = []
    for rank_requests in requests:
        position = {}
        for batch in rank_requests:
            assert [request.slot for request in batch] == [-1, -1, 0, 1]
            for request in batch[2:]:
                if not request.is_first and not request.is_empty:
                    assert position[request.slot] == (request.recording, request.start)
                position[request.slot] = (request.recording, request.stop)
        first_epoch += [request for batch in rank_requests[:4] for request in batch[2:] if not request.is_empty]
    chunks = sorted((request.recording, request.start, request.stop) for request in first_epoch)
    assert len(set(chunks)) == len(chunks)
    by_recording = defaultdict(int)
    for recording, start, stop in chunks:
        by_recording[recording] += stop - start
    assert len(set(by_recording.values())) == 1 and len(by_recording) == 2  # both as long, and whole
    seeds = [request.augment_seed for found in requests for batch in found for request in batch[:2]]
    assert len(set(seeds)) == len(seeds)


def test_processes_that_accumulate_gradients_are_one(toy_data, toy_config, prepared, tmp_path, logged):
    """Two processes, of which Lightning starts the second."""
    settings = ("training.accumulate=2", "training.steps=2", *EXACT, "sampling.chunk_length=3", *FOUND)
    train(toy_config(tmp_path / "alone", *settings, f"sampling.batch_size={BATCH}"))
    both = tmp_path / "both"
    both.mkdir()
    run_as_script(prepared, both, [*toy_data, *settings, *shares(both, 2), "training.loggers=[]"])
    assert_same_in_all_processes(both, 2)
    found, wanted = weights(both), weights(tmp_path / "alone")
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)
    assert_same_metrics(logged(both)[1], logged(tmp_path / "alone")[1])


def test_the_validation_of_three_nodes_is_an_evaluation_by_one_process(toy_data, toy_config, ranks, tmp_path, logged):
    """There are more nodes than recordings, so that one only waits."""
    settings = (*FOUND, "training.steps=1", "sampling.chunk_length=3")
    assert ranks(tmp_path, *toy_data, *settings, devices=3, nodes=3) == [0, 0, 0]
    assert_same_in_all_processes(tmp_path, 3)
    settings = (*settings, "evaluation.split=val", "evaluation.source=prepared")
    (one,) = evaluate(replace(toy_config(tmp_path / "one", *settings), checkpoint=str(best_checkpoint(tmp_path))))
    (row,) = one.rows
    assert_same_metrics(logged(tmp_path)[0], {f"val/{name}": row[name] for name in one.metric_names})


def assert_same_in_all_processes(out: Path, devices: int) -> None:
    first, *others = (found["weights"] for found in notes(out))
    assert len(others) == devices - 1
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def assert_same_metrics(found: Mapping[str, str], wanted: Mapping[str, str | float]) -> None:
    names = [name for name in wanted if name.startswith("val/")]
    assert float(wanted["val/AP"]) > 0
    for name in names:
        assert float(found[name]) == pytest.approx(float(wanted[name]), rel=1e-6, nan_ok=True), name


def test_a_run_goes_on_after_one_of_its_processes_was_killed_or_asked_to_end(whole, toy_data, ranks, tmp_path, logged):
    """The others end in bounded time; asked in time, all end after the same step. In the end nothing is different."""
    settings = (*toy_data, *SETTINGS, *FOUND, "optim.scale_with_batch=true", "resume=auto")

    def reached() -> int:
        return load_file(last_checkpoint(tmp_path))["global_step"]

    codes = ranks(tmp_path, *settings, blow=(0, 3, signal.SIGKILL))
    assert codes == [-signal.SIGKILL, 2] and reached() == 2
    told = " ".join((tmp_path / "rank1.txt").read_text().split())
    assert told.count("another process of this training has ended") == 1 and "Traceback" not in told
    assert re.search(r"goes back from step \d to step 2 in", told), told
    assert "the same command with resume=auto goes on" in told
    # one is asked to end, as by SLURM when the time of the job is over: all do, after the step that they are in
    asked = ranks(tmp_path, *settings, blow=(1, 2, signal.SIGUSR1), launcher=srun_variables)
    assert asked == [130, 0] and reached() == 3
    assert ranks(tmp_path, *settings) == [0, 0] and reached() == NUM_STEPS
    found, wanted = weights(tmp_path), weights(whole)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    found_log, log = logged(tmp_path), logged(whole)
    assert [found_log[step] for step in range(3, NUM_STEPS)] == [log[step] for step in range(3, NUM_STEPS)]
