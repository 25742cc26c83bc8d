"""Runs a detector in lower precision outside of training: products in bfloat16, states, steps and boxes in float32."""

import torch
from torch import nn

from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PRECISIONS
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.limits import check_choice

_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # the last one is that of ARM


def has_bf16_units(device_type: str) -> bool:
    """Return whether a device multiplies matrices in bfloat16 faster than in float32, by its own description."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and any(torch.cpu.get_capabilities().get(flag, False) for flag in _BF16_FLAGS)


def fastest_precision(device_type: str) -> str:
    """Return bf16 if a device has units for it, and float32 if not."""
    return "bf16" if has_bf16_units(device_type) else "float32"


def set_precision(detector: Detector, precision: str) -> None:
    """Let a detector compute its products in bfloat16 from now on if `precision` is `bf16`, one of PRECISIONS.

    The numbers are those of `torch.autocast`. Weights of products are rounded once, in place, because rounding them at
    every step would cost as much as a small step. The temporal layers keep their weights, states and discretisation in
    float32 and round inside. ValueError for another precision.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return
    detector.product_dtype = torch.bfloat16
    _round_weights(detector)


def _round_weights(module: nn.Module) -> None:
    for child in module.children():
        if type(child) in (nn.Linear, nn.Conv2d):  # one of another kind may compute with its weights before the product
            child.to(torch.bfloat16)
        elif not isinstance(child, TemporalLayer):
            _round_weights(child)
