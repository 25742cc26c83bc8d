"""Trains every combination of backbone and head once on the demo's data at the demo's budget, and measures it.

Everything is kept below one folder: the recordings, and a folder per training. An interrupted training goes on where it
was, and a combination that has its row is not done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.any_rate.study import HZ, Study, make_data, read_result, training_facts, write_result
from rvtssm.cli import compose
from rvtssm.events.readers import open_recording
from rvtssm.events.tree import find_recordings
from rvtssm.inference.live import StreamDetector
from rvtssm.models.checkpoint import LoadedCheckpoint, read_checkpoint
from rvtssm.run.evaluate import evaluate
from rvtssm.run.train import train

# the weights are random
TIMM = ("model.backbone=timm", "model.timm_name=regnetx_002")
# the defaults are made for larger frames with more objects, and cost too much of a step on a CPU
RTDETR = ("model.head=rtdetr", "model.rtdetr_queries=30", "model.rtdetr_layers=2", "model.rtdetr_denoising=12")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "rvt_yolox": (),
    "timm_yolox": TIMM,
    "rvt_rtdetr": RTDETR,
    "timm_rtdetr": (*TIMM, *RTDETR),
}
PRECISION = "bf16-mixed"  # half of the time of float32 on a processor with units for it
SEED = 0
LIVE_STEPS = 60  # 3 s of a recording
TURNS = 3
_WARM_UP = 5


def run(study: Study, names: Sequence[str], path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Do those of `names` that `path` has no row of; returns and keeps all rows, in the order of the combinations.

    The live steps of all rows are timed by turns, since only times of one run can be compared.
    """
    result = read_result(path, study)
    missing = [name for name in names if name not in {row["name"] for row in result["rows"]}]
    if missing:
        make_data(study)
    for name in missing:
        row = {"name": name, **measured(study, name), **facts}
        result["rows"] = sorted([*result["rows"], row], key=lambda row: list(study.variants).index(row["name"]))
        write_result(path, result)
    if any("live_ms" not in row for row in result["rows"]):
        files = [study.folder / row["name"] / "checkpoints" / "best.ckpt" for row in result["rows"]]
        turns = [[live_ms(read_checkpoint(file), study.folder / "raw") for file in files] for _ in range(TURNS)]
        for row, times in zip(result["rows"], zip(*turns, strict=True), strict=True):
            row["live_ms"] = round(median(times), 2)
        write_result(path, result)
    return result


def measured(study: Study, name: str) -> dict[str, Any]:
    """Train a combination and evaluate it at every rate with a sliding window."""
    out = study.folder / name
    words = study.words(name, SEED)
    best = train(compose([*words, f"out={out}", "resume=auto"]))
    (report,) = evaluate(
        compose(
            [
                *words,
                f"out={out / 'evaluation'}",
                f"checkpoint={best}",
                f"evaluation.frequencies_hz={list(HZ)}",
                "evaluation.window=slide",
            ]
        )
    )
    return {
        "overrides": list(study.variants[name]),
        "steps": study.steps,
        **training_facts(out, words),
        "AP": {f"{row.hz:g}": row.metrics["AP"] for row in report.rows},
        "AP50": {f"{row.hz:g}": row.metrics["AP50"] for row in report.rows},
    }


def live_ms(checkpoint: LoadedCheckpoint, raw_dir: Path) -> float:
    """Return the median milliseconds of a step on one thread, from the events of a window to its boxes.

    The windows are the first ones of the first test recording, at the rate of training.
    """
    spec = checkpoint.spec
    recording = open_recording(find_recordings(raw_dir, "test", spec)[0].events_path, spec.height, spec.width)
    live = StreamDetector(checkpoint, spec.height, spec.width, start_us=0)
    stride_us, threads = round(checkpoint.windows.stride_us), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = [
            window.seconds
            for end_us in range(stride_us, (LIVE_STEPS + 1) * stride_us, stride_us)
            for window in live.push(recording.between(end_us - stride_us, end_us), until_us=end_us)
        ]
    finally:
        torch.set_num_threads(threads)
    return 1000 * median(seconds[_WARM_UP:])
