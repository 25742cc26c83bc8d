"""Moving values to the device of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Return values of the CPU on a device, without waiting for what it computes: only pinned memory is copied so."""
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
