"""Says what a command is about to do, before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rvtssm.commands.console import say

if TYPE_CHECKING:  # it imports torch, without which recordings are prepared
    from rvtssm.datasets.sequence import FrameSequence


def announce(verb: str, **facts: object) -> None:
    """Print on one line what a command is about to do: the name and the value of every fact that is not None."""
    shown = (f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value is not None)
    say(f"about to {verb}: {', '.join(shown)}")


def with_labels(sequences: Sequence[FrameSequence]) -> str:
    """Return the number of recordings and of their labels in words."""
    return f"{len(sequences)} with {sum(len(sequence.labels) for sequence in sequences)} labels"
