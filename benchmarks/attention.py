"""Which form of attention is fastest, by precision, with and without gradients: the source of `attention.WRITTEN_OUT`.

    python -m benchmarks.attention [--device cuda] [--threads T] [--json FILE]

Shapes are those of block and grid attention in the four stages of the base detector on Gen1 (80 pixels in a group,
heads of 32 features) for 10 frames. `call` is `F.scaled_dot_product_attention`, `float32` the same call on inputs cast
to float32, `written out` the form of `rvtssm.models.attention`. All take turns; times are the least of the rounds, in
milliseconds, and the ratio is that of the call over that of the form written out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.scan import keep_freed_memory, machine
from rvtssm.models import attention
from rvtssm.system.atomic_files import atomic_file

SHAPES = ((640, 64), (160, 128), (40, 256), (10, 512))  # groups, channels, for 10 frames
TOKENS, HEAD_DIM, ROUNDS = 80, 32, 7
FORMS = ("call", "float32", "written out")


def main(arguments: Sequence[str] | None = None, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        keep_freed_memory()
    rows = [
        measure(groups, channels, dtype, options.device, is_training)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for is_training in (False, True)
        for groups, channels in shapes
    ]
    found = {**machine(options.device), "rows": rows}
    table = Table(title=f"attention: {found['device']}, {found['threads']} threads, ms")
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    if options.json:
        with atomic_file(options.json) as staged:
            staged.write_text(json.dumps(found, indent=1) + "\n")


def measure(groups: int, channels: int, dtype: torch.dtype, device: str, is_training: bool) -> dict[str, Any]:
    """Return a row of the table."""
    qkv = torch.randn(groups, TOKENS, 3 * channels, device=device, dtype=dtype)
    best = dict.fromkeys(FORMS, float("inf"))
    for _ in range(ROUNDS):
        for form in FORMS:
            best[form] = min(best[form], _milliseconds(_form(form, dtype, device), qkv, is_training))
    return {
        "precision": str(dtype).removeprefix("torch."),
        "pass": "both" if is_training else "forward",
        "groups": groups,
        "channels": channels,
        **best,
        "ratio": best["call"] / best["written out"],
    }


def _form(form: str, dtype: torch.dtype, device: str) -> Callable[[Tensor], Tensor]:
    """Return attention in this form; it is chosen as the package chooses it."""
    chosen = frozenset({(device, dtype)}) if form == "written out" else frozenset()

    def run(qkv: Tensor) -> Tensor:
        original, attention.WRITTEN_OUT = attention.WRITTEN_OUT, chosen
        try:
            if form == "float32":
                return attention.attend(qkv.float(), HEAD_DIM).to(qkv.dtype)
            return attention.attend(qkv, HEAD_DIM)
        finally:
            attention.WRITTEN_OUT = original

    return run


def _milliseconds(run: Callable[[Tensor], Tensor], qkv: Tensor, is_training: bool) -> float:
    # the form written out is chosen for inputs that need a gradient, so `forward` is that of a training
    inputs = qkv.detach().requires_grad_()
    _wait(qkv)
    began = time.perf_counter()
    mixed = run(inputs)
    if is_training:
        mixed.backward(mixed.detach())
    _wait(qkv)
    return 1000 * (time.perf_counter() - began)


def _wait(values: Tensor) -> None:
    if values.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
