"""Runs a detector in lower precision outside of training: products in bfloat16; states, steps and boxes in float32."""

import torch
from torch import nn

from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PRECISIONS
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.limits import check_choice

_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # the last one is for ARM


def has_bf16_units(device_type: str) -> bool:
    """Return whether a type of device reports hardware for matrix products in bfloat16, which makes them faster.

    Args:
        device_type: Type of a torch device, such as `cpu` or `cuda`.
    """
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and any(torch.cpu.get_capabilities().get(flag, False) for flag in _BF16_FLAGS)


def fastest_precision(device_type: str) -> str:
    """Return `bf16` if a type of device has hardware for it, else `float32`.

    Args:
        device_type: Type of a torch device, such as `cpu` or `cuda`.
    """
    return "bf16" if has_bf16_units(device_type) else "float32"


def set_precision(detector: Detector, precision: str) -> None:
    """Make a detector compute its products in bfloat16 from now on, if `precision` says so.

    The results are the ones of `torch.autocast`. The weights of products are rounded once, in place, because rounding
    them at every step would cost as much as a small step. Temporal layers keep weights, states and discretisation in
    float32 and round within the layer.

    Args:
        detector: The detector to change.
        precision: One of PRECISIONS, `float32` or `bf16`.

    Raises:
        UserError: If the precision is unknown.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return
    detector.product_dtype = torch.bfloat16
    _round_weights(detector)


def _round_weights(module: nn.Module) -> None:
    for child in module.children():
        if type(child) in (nn.Linear, nn.Conv2d):  # subclasses may compute with their weights before the product
            child.to(torch.bfloat16)
        elif not isinstance(child, TemporalLayer):
            _round_weights(child)
