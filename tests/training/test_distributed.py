"""Two processes that train together agree, and their validation is that of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rvtssm.models.checkpoint import load_file
from rvtssm.run.evaluate import evaluate
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
# untrained weights find nothing with certainty: every box counts, so that there is something to compare
SETTINGS = ("training.steps=2", "postprocess.min_score=0", "data.eval_batch_size=1")


@pytest.mark.distributed
def test_two_processes_validate_like_one(toy_data, toy_config, tmp_path, logged):
    command = [sys.executable, str(TRAIN), *toy_data, *SETTINGS, "training.devices=2", f"out={tmp_path}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        told, errors = first.communicate(timeout=300)  # 15 s on an idle machine; mostly imports
    except BaseException:
        os.killpg(first.pid, signal.SIGKILL)  # the second process as well
        raise
    assert first.returncode == 0, errors
    assert told.count("trained 0.") == 1

    (found,) = (row for row in logged(tmp_path).values() if "val/AP" in row)
    (one,) = evaluate(
        replace(
            toy_config(tmp_path / "one", *SETTINGS, "evaluation.split=val", "evaluation.source=prepared"),
            checkpoint=str(best_checkpoint(tmp_path)),
        )
    )
    (row,) = one.rows
    assert row.metrics["AP"] > 0
    for name, value in row.metrics.items():
        assert float(found[f"val/{name}"]) == pytest.approx(value, rel=1e-4, abs=1e-9, nan_ok=True), name
    # each process has streams of its own to go on with
    processes = load_file(last_checkpoint(tmp_path))["processes"]
    assert [sorted(process["streams"]) for process in processes] == [[0, 1], [0, 1]]
    assert not (processes[0]["streams"][0][0] == processes[1]["streams"][0][0]).all()
