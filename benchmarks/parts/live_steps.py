"""The rows of a finished study of parts, with the time of a live step, which only this benchmark measures."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from benchmarks.events.__main__ import cpu_extensions
from rvtssm.contrib.studies.study_config import StudyConfig
from rvtssm.contrib.studies.study_report import score_from_json
from rvtssm.datasets.tree import find_recordings
from rvtssm.detection.engine import StreamDetector
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers import open_recording
from rvtssm.system.machine import num_usable_cores
from rvtssm.training.checkpoints import best_checkpoint

LIVE_STEPS = 60  # 3 s of a recording
TURNS = 3
_WARM_UP = 5


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return a row per combination of the study in `folder`.

    The live steps of all rows are timed by turns, since only times of one run can be compared.
    """
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    overrides = dict(StudyConfig(settings["study"]["variants"]).named_variants())
    scores = [score_from_json(each) for each in json.loads((folder / "study.json").read_text())["scores"]]
    trainings = [folder / f"variant={score.row}" for score in scores]
    files, raw_dir = [best_checkpoint(training) for training in trainings], settings["dataset"]["raw_dir"]
    turns = []
    for _ in range(TURNS):
        turns.append([live_ms(read_checkpoint(file), raw_dir) for file in files])
    rows = []
    for score, training, *times in zip(scores, trainings, *turns, strict=True):
        ran = json.loads((training / "environment.json").read_text())
        scored = {}
        for name in ("AP", "AP50"):
            scored[name] = {f"{hz:g}": row.metrics[name] for hz, row in score.rates.items()}
        facts = {
            "name": score.row,
            "overrides": overrides[score.row],
            "steps": settings["training"]["steps"],
            "precision": settings["training"]["precision"],
            "parameters": score.parameters,
            "train_seconds": score.train_seconds,
            **scored,
            "cpu": ran["processor"],
            **{name: ran[name] for name in ("python", "torch", "commit")},
            "cores": num_usable_cores(),
            "cpu_extensions": cpu_extensions(),
            "live_ms": round(median(times), 2),
        }
        rows.append(facts)
    return rows


def live_ms(checkpoint: LoadedCheckpoint, raw_dir: str) -> float:
    """Return the median milliseconds of a step on one thread, from the events of a window to its boxes.

    The windows are the first ones of the first test recording, at the rate of training.
    """
    spec = checkpoint.spec
    path = find_recordings(raw_dir, "test", spec)[0].events_path
    live = StreamDetector(checkpoint, spec.height, spec.width, start_us=0)
    stride_us, threads = round(checkpoint.windows.stride_us), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with closing(open_recording(path, spec.height, spec.width)) as recording:
            seconds = [
                window.seconds
                for end_us in range(stride_us, (LIVE_STEPS + 1) * stride_us, stride_us)
                for window in live.push(recording.between(end_us - stride_us, end_us), until_us=end_us)
            ]
    finally:
        torch.set_num_threads(threads)
    return 1000 * median(seconds[_WARM_UP:])
