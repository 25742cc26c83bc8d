"""Forward passes, training steps and live steps of a size of the detector, by precision and beside other forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import streaming
from benchmarks.measuring import take_turns, times_faster
from benchmarks.scan import keep_freed_memory
from benchmarks.training.step import (
    BACKBONE_LOOP,
    TEXTBOOK,
    Say,
    Shape,
    Training,
    build_training,
    make_batch,
)
from rvtssm.models.detector import set_precision

# what is compared: its name here, and in `benchmarks.training`
FORMS = {"float32": "s5+", "bf16": "s5+bf16", "textbook layer": f"s5+{TEXTBOOK}", "RVT's loop": BACKBONE_LOOP}
_PRODUCT = 2048  # rows and columns of the matrices of the limit
_ROUNDS = 10


def measure_limits(side: int = _PRODUCT) -> dict[str, float]:
    """Return GFLOP/s of a large product in each precision: the fastest of several, in 8 bits with sums in int32."""
    left, right = torch.randn(2, side, side)
    low = [torch.randint(-100, 100, (side, side), dtype=torch.int8) for _ in range(2)]
    products: dict[str, Callable[[], object]] = {
        "float32": lambda: left @ right,
        "bf16": partial(torch.mm, left.bfloat16(), right.bfloat16()),
        "int8": partial(torch._int_mm, *low),
    }
    return {name: 2e-9 * side**3 / min(seconds) for name, seconds in take_turns(products, _ROUNDS).items()}


def measure_passes(part: str, sizes: Sequence[str], length: int, rounds: int, say: Say) -> list[dict[str, Any]]:
    """Return a row per size and form of one part, `forward` or `training`."""
    keep_freed_memory()
    rows = []
    for size in sizes:
        say(f"{part} of {size}")
        shape = Shape(1, length, "cpu", streaming.SPEC.height, streaming.SPEC.width, streaming.SIZES[size])
        batch = make_batch(shape)
        trainings = {form: build_training(name, shape) for form, name in FORMS.items()}
        runs: dict[str, Callable[[], object]] = {
            form: partial(training.step, batch) if part == "training" else partial(_forward(training), batch)
            for form, training in trainings.items()
        }
        taken = take_turns(runs, rounds)
        rows += [
            {"size": size, "form": form, "ms": 1000 * median(seconds)}
            | {f"times_{other}": times_faster(seconds, taken[other]) for other in ("float32", *list(FORMS)[2:])}
            for form, seconds in taken.items()
        ]
    return rows


def _forward(training: Training) -> Callable[..., object]:
    """Return what an evaluation runs: without gradients, in lower precision with weights that are rounded once."""
    training.detector.eval()
    if training.dtype is not None:
        set_precision(training.detector, "bf16")
    return torch.inference_mode()(training.predict)


def measure_live_steps(
    sizes: Sequence[str], forms: Sequence[str], folder: Path, rounds: int, limits: dict[str, float], say: Say
) -> list[dict[str, Any]]:
    """Return the rows of `benchmarks.streaming` for S5, with the share of the limit of their precision."""
    rows = []
    for row in streaming.measure_steps(sizes, ("s5",), forms, folder, rounds, "cpu", say):
        gflop = gflop_of_step(row.size)
        speed, precision = gflop / row.median_ms * 1e3, row.form.split()[-1]
        limit = limits.get(precision, limits["float32"])
        rows.append({**asdict(row), "gflop": gflop, "gflop_per_s": speed, "share": speed / limit})
    return rows


@torch.inference_mode()
def gflop_of_step(size: str) -> float:
    """Return the products of one live step in GFLOP, two for a multiplication and its addition."""
    checkpoint = streaming.build_checkpoint(size, "s5")
    hist = torch.zeros(1, 20, *checkpoint.detector.frame_hw, dtype=torch.uint8)
    step = streaming.step_of(checkpoint)
    with FlopCounterMode(display=False) as counter:
        step(hist)
    return counter.get_total_flops() / 1e9


def met_bars(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return every goal that was measured, with the measured value."""
    measured: list[tuple[str, float, float]] = []
    for part, wanted in (("training", 1.8), ("forward", 2.5)):
        for row in found.get(part, []):
            if row["size"] == "base" and row["form"] == "bf16":
                measured.append((f"{part} of base, bf16 against float32", row["times_float32"], wanted))
    live = [row for row in found.get("live", []) if row["size"] == "tiny"]
    if ratios := {row["form"]: row["times_eager"] for row in live if row["times_eager"] is not None}:
        best = max(ratios, key=lambda form: ratios[form])
        measured.append((f"live step of tiny, {best} against eager in float32", ratios[best], 3.0))
    return [
        {"bar": f"{name}: {ratio:.2f}", "wanted": f">= {wanted:g}", "met": ratio >= wanted}
        for name, ratio, wanted in measured
    ]
