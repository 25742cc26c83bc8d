"""Move values to the device of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from the CPU to a device without waiting for the device's computations.

    Only pinned memory can be copied in this way, so values are pinned first if the device is a GPU.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
