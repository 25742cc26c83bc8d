"""What started the processes of a run is recognised, obeyed, and checked against the configuration."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities import rank_zero_only
from torch.distributed.run import config_from_args, get_args_parser
from user_errors import raises

from rvtssm.training import TrainingConfig
from rvtssm.training.checkpoints import best_checkpoint
from rvtssm.training.trainer import build_trainer, check_processes

ROOT = Path(__file__).parents[2]
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
# what srun says to the second task of two on the first of two nodes
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "rvtssm",
    "SLURM_NODELIST": "node[07-08]",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}


@pytest.fixture
def started_by(monkeypatch):
    """A function: what the launcher wrote into the environment."""
    monkeypatch.setattr(rank_zero_only, "rank", rank_zero_only.rank)  # a trainer of another rank sets it for good
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "WORLD_SIZE", "MASTER_ADDR")):
            monkeypatch.delenv(name)

    def by(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return by


@pytest.mark.parametrize(
    ("variables", "launcher"), [({**TORCHRUN, "WORLD_SIZE": "4"}, "torchrun"), (SRUN, "srun"), ({}, None)]
)
def test_a_launcher_and_the_configuration_must_agree(started_by, tmp_path, variables, launcher):
    started_by(**variables)
    if launcher is None:
        check_processes(3, 1)
        with raises("setting.needs", "training.num_nodes"):  # it would wait in vain
            check_processes(1, 2)
        return
    check_processes(2, 2)
    with raises("setting.conflict", "training.devices"):
        build_trainer(TrainingConfig(accelerator="cpu"), tmp_path, 1.0)


def test_srun_has_to_say_how_many_processes_a_node_has(started_by, tmp_path):
    started_by(**{name: value for name, value in SRUN.items() if name != "SLURM_NTASKS_PER_NODE"})
    with raises("setting.needs", "--ntasks-per-node"):
        build_trainer(TrainingConfig(accelerator="cpu", devices=2, num_nodes=2), tmp_path, 1.0)


def test_a_trainer_takes_its_place_from_slurm_and_leaves_its_signals_to_us(started_by, tmp_path):
    started_by(**SRUN)
    trainer = build_trainer(TrainingConfig(accelerator="cpu", devices=2, num_nodes=2), tmp_path, 1.0)
    environment = trainer.strategy.cluster_environment
    assert isinstance(environment, SLURMEnvironment) and environment.main_address == "node07"
    assert not environment.auto_requeue
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank) == (4, 1, 1, 0)


def test_statistics_over_all_processes_need_gpus(tmp_path):
    with raises("setting.needs", "training.sync_batchnorm"):
        build_trainer(TrainingConfig(accelerator="cpu", sync_batchnorm=True), tmp_path, 1.0)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be GPUs")
def test_without_gpus_the_number_of_processes_has_to_be_named():
    environment = {name: value for name, value in os.environ.items() if name != "PROCESSES"}
    command = ["bash", str(ROOT / "scripts" / "train_torchrun.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "as in PROCESSES=2" in done.stderr


@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_starts_as_many_processes_as_are_asked_for(tmp_path, nodes):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    command = ["bash", str(ROOT / "scripts" / "train_torchrun.sh"), "dataset=gen1"]
    environment = {**os.environ, "PYTHON": str(python), "PROCESSES": "3", "PORT": "1234"}
    for name in ("NODES", "HEAD", "RESTARTS"):
        environment.pop(name, None)
    if nodes > 1:
        environment |= {"NODES": str(nodes), "HEAD": "10.0.0.1"}
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True
    )
    told = run.stdout
    module, name, *words = told.split()
    assert (module, name) == ("-m", "torch.distributed.run")
    asked = get_args_parser().parse_args(words)  # as torchrun reads its command line
    assert (asked.training_script, *asked.training_script_args) == (
        *(
            str(ROOT / "scripts/train.py"),
            "resume=auto",
            "training.devices=3",
            f"training.num_nodes={nodes}",
            "dataset=gen1",
        ),
    )
    config, _, _ = config_from_args(asked)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts) == (nodes, nodes, 3, 1)
    assert config.rdzv_endpoint == ("localhost:1234" if nodes == 1 else "10.0.0.1:1234")
    assert (config.rdzv_backend, config.run_id) == ("c10d", "rvtssm")


# srun: becomes the task; scontrol: tells where the script is, and takes notes; python: waits for the signal
STAND_INS = {
    "srun": """#!/bin/sh
shift
exec "$@"
""",
    "scontrol": """#!/bin/sh
if [ "$1" = show ]; then echo "   Command=$SCRIPT dataset=gen1"; else echo "$@" >requeued; fi
""",
    "python": """#!/bin/sh
trap 'exit 130' USR1
echo "$@" >asked
while :; do sleep 0.02; done
""",
}


def test_a_job_whose_time_is_over_is_told_and_goes_back_into_the_queue(tmp_path):
    """Processes that srun has started end with 130 then: test_distributed.py."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in STAND_INS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    variables = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": str(tools / "python"),
        "SCRIPT": str(ROOT / "scripts/train_slurm.sh"),
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "3",
    }
    copied = shutil.copy(ROOT / "scripts" / "train_slurm.sh", tmp_path / "slurm_script")  # as SLURM does
    asked = tmp_path / "asked"
    job = subprocess.Popen(
        ["bash", copied, "dataset=gen1"], env={**os.environ, **variables}, cwd=tmp_path, start_new_session=True
    )
    try:
        began = time.monotonic()
        while not (asked.exists() and asked.read_text()) and job.poll() is None and time.monotonic() - began < 600:
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=600) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    script, *words = asked.read_text().split()
    assert script == str(ROOT / "scripts/train.py")
    assert words == ["resume=auto", "training.devices=2", "training.num_nodes=3", "dataset=gen1"]
    assert (tmp_path / "requeued").read_text().split() == ["requeue", "4711"]


@pytest.mark.parametrize("command", ["(null)", "/somewhere/else/train_slurm.sh"])
def test_a_job_that_cannot_find_the_checkout_says_how_to_name_it(tmp_path, command):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "   Command={command}"\n')
    (tools / "scontrol").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    script = ["bash", str(ROOT / "scripts/train_slurm.sh")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "sbatch --export=ALL,CHECKOUT=DIR" in done.stderr


# how its worker processes start

BEGIN = """
import multiprocessing

multiprocessing.set_start_method({method!r}, force=True)
"""
WORK = {
    "train": """
from rvtssm.cli.main import main

assert main(["train", *{words}, "training.steps=1", "data.workers=1", "dataset.source=raw", "out=run"]) == 0
print("DONE")
""",
    "evaluate": """
import rvtssm

report = rvtssm.evaluate({weights!r}, split="val", bootstrap=0, workers=2)
assert len(report.rows) == 2
print("DONE")
""",
}


@pytest.mark.parametrize(
    ("method", "name", "work"),
    [("spawn", "script.py", "evaluate"), ("forkserver", "-", "train")],
)
def test_a_program_needs_no_guard(toy_data, two_steps, tmp_path, method, name, work):
    """A script without `if __name__ == "__main__"`, and a main program without a file, as in a notebook."""
    values = {"method": method, "words": toy_data, "weights": str(best_checkpoint(two_steps))}
    program = (BEGIN + WORK[work]).format(**values)
    (tmp_path / "script.py").write_text(program)
    done = subprocess.run([sys.executable, name], input=program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 1
    assert "in use by" not in done.stdout + done.stderr and "Traceback" not in done.stderr
