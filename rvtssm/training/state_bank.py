"""The stored states of the streams: one per slot, detached between chunks, forgotten where a recording starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

State = Any  # a tensor, or a (nested) tuple of tensors


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """`function` over the corresponding tensors of equally nested states."""
    if isinstance(states[0], Tensor):
        return function(*states)
    return tuple(map_state(function, *parts) for parts in zip(*states, strict=True))


class StateBank:
    """States of the slots that streams run in.

    A state leaf of a batch has shape (B * n, ...), stream-major; the bank keeps it as (num_slots, n, ...).
    """

    def __init__(self) -> None:
        self.slots: dict[int, State] = {}

    def clear(self) -> None:
        """Forget every stream, as at the end of a validation."""
        self.slots.clear()

    def read(self, zero: State, slot: Tensor, is_first: Tensor) -> State:
        """The state of a batch: `zero` (the zero state of B streams), with the stored state where a stream goes on.

        slot (B,) int64, -1 for random chunks; is_first (B,) bool.
        """
        num_streams = len(slot)
        going_on = [
            (b, int(s))
            for b, (s, first) in enumerate(zip(slot.tolist(), is_first.tolist(), strict=True))
            if s >= 0 and not first and int(s) in self.slots
        ]
        if not going_on:
            return zero
        index = torch.tensor([b for b, _ in going_on], device=slot.device)

        def place(leaf: Tensor, *stored: Tensor) -> Tensor:
            by_stream = leaf.reshape(num_streams, -1, *leaf.shape[1:]).clone()
            by_stream[index.to(leaf.device)] = torch.stack(stored).to(leaf)
            return by_stream.reshape(leaf.shape)

        return map_state(place, zero, *(self.slots[s] for _, s in going_on))

    def write(self, slot: Tensor, state: State) -> None:
        """Keep the state after a chunk for every stream of the batch, cut from the graph."""
        num_streams = len(slot)
        for b, s in enumerate(slot.tolist()):
            if s >= 0:
                # clone: a view would keep the states of the whole batch alive
                self.slots[s] = map_state(
                    lambda leaf, b=b: leaf.detach().reshape(num_streams, -1, *leaf.shape[1:])[b].clone(), state
                )

    def state_dict(self) -> dict[int, State]:
        return {slot: map_state(Tensor.cpu, state) for slot, state in self.slots.items()}

    def load_state_dict(self, slots: dict[int, State]) -> None:
        self.slots = dict(slots)
