"""Runs a detector in lower precision outside of training: products in bfloat16; states, steps and boxes in float32."""

from functools import cache
from time import perf_counter

import torch
from torch import nn

from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PRECISIONS
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.limits import check_choice

_PRODUCT_SIDE = 512  # of the matrices whose product is timed; 2 to 10 ms per product on one core
_TIMED_PRODUCTS = 5


def fastest_precision(device_type: str) -> str:
    """Return `bf16` if a type of device computes matrix products faster in it, else `float32`.

    A CPU is measured, once per process, because its flags do not tell: Intel processors without AMX report AVX512-BF16,
    but their products in bfloat16 take about twice as long as those in float32.

    Args:
        device_type: Type of a torch device, such as `cpu` or `cuda`.
    """
    if device_type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if device_type == "cpu" and _bf16_is_faster() else "float32"


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


@cache
def _bf16_is_faster() -> bool:
    matrices = [torch.ones(_PRODUCT_SIDE, _PRODUCT_SIDE, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    seconds = [list(map(_seconds_of_product, matrices)) for _ in range(1 + _TIMED_PRODUCTS)]
    of_float32, of_bf16 = map(min, zip(*seconds[1:], strict=True))  # the first round also prepares the kernels
    return of_bf16 < of_float32


def _seconds_of_product(matrix: torch.Tensor) -> float:
    before = perf_counter()
    matrix @ matrix
    return perf_counter() - before
