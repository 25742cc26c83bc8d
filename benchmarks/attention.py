"""Which form of attention is fastest, by precision, with and without gradients: the source of `attention.WRITTEN_OUT`.

    python -m benchmarks.attention [--device cuda] [--threads T] [--json FILE]

Shapes are those of block and grid attention in the four stages of the base detector on Gen1 (80 pixels in a group,
heads of 32 features) for 10 frames. `call` is `F.scaled_dot_product_attention`, `float32` the same call on inputs cast
to float32, `written out` the form of `rvtssm.models.backbones.attention`. All take turns; times are the least of the
rounds, in milliseconds, and the ratio is that of the call over that of the form written out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measuring import take_turns, write_json
from benchmarks.scan import keep_freed_memory, machine
from rvtssm.models.backbones import attention

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
    write_json(options.json, found)


def measure(groups: int, channels: int, dtype: torch.dtype, device: str, is_training: bool) -> dict[str, Any]:
    """Return a row of the table."""
    qkv = torch.randn(groups, TOKENS, 3 * channels, device=device, dtype=dtype)
    taken = take_turns({form: _run_of(form, qkv, is_training) for form in FORMS}, ROUNDS, device)
    best = {form: 1000 * min(seconds) for form, seconds in taken.items()}
    return {
        "precision": str(dtype).removeprefix("torch."),
        "pass": "both" if is_training else "forward",
        "groups": groups,
        "channels": channels,
        **best,
        "ratio": best["call"] / best["written out"],
    }


def _run_of(form: str, qkv: Tensor, is_training: bool) -> Callable[[], None]:
    """Return a pass of attention in this form; it is chosen as the package chooses it."""
    chosen = frozenset({(qkv.device.type, qkv.dtype)}) if form == "written out" else frozenset()

    def run() -> None:
        # the form written out is chosen for inputs that need a gradient, so `forward` is that of a training
        inputs = qkv.detach().requires_grad_()
        original, attention.WRITTEN_OUT = attention.WRITTEN_OUT, chosen
        try:
            mixed = attention.attend(inputs.float() if form == "float32" else inputs, HEAD_DIM).to(qkv.dtype)
        finally:
            attention.WRITTEN_OUT = original
        if is_training:
            mixed.backward(mixed.detach())

    return run


if __name__ == "__main__":
    main()
