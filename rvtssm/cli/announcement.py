"""Says what a command is about to do, before its first step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rvtssm.cli.console import say

if TYPE_CHECKING:  # it imports torch, without which recordings are prepared
    from rvtssm.datasets.sequence import FrameSequence


def announce(verb: str, **facts: object) -> None:
    """Print on one line what a command is about to do: the name and the value of every fact that is not None."""
    shown = (f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value is not None)
    say(f"about to {verb}: {', '.join(shown)}")


def say_replaced(folder: Path, name: str) -> None:
    """Say so before the results of an earlier command, of which `name`.json is one file, are replaced."""
    summary = folder / f"{name}.json"
    if summary.is_file():
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.stat().st_mtime))
        say(f"replaces the results of {written} in {folder}; out= chooses another folder")


def with_labels(sequences: Sequence[FrameSequence], num_without: int = 0) -> str:
    """Return the number of recordings and of their labels in words. `num_without` others were left out: no boxes."""
    num_labels = sum(len(sequence.labels) for sequence in sequences)
    num_thinned = sum(sequence.num_thinned for sequence in sequences)
    left_out = f" ({thinned_in_words(num_thinned, num_labels)})" if num_thinned else ""
    without = f", {num_without} without boxes left out" if num_without else ""
    return f"{len(sequences)} with {num_labels} labels{left_out}{without}"


def thinned_in_words(num_thinned: int, num_kept: int) -> str:
    """Say how many labels are left out because of their time, and why."""
    return (
        f"{num_thinned} of {num_thinned + num_kept} labels left out, because only label times about label_interval_us "
        "apart are used"
    )
