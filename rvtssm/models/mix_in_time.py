"""A temporal layer on maps: every pixel is a sequence of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rvtssm.ssm import TemporalLayer


def mix_in_time(
    layer: TemporalLayer, maps: Tensor, state: Any, step_scale: Any, remembers: bool = True
) -> tuple[Tensor, Any]:
    """Run L steps of B streams: maps (L, B, H, W, D), state of N = B * H * W sequences -> the same.

    The step scale is a number, (B,) or (L, B), relative to training, or what the layer prepared. If the layer does not
    remember, every step starts from the zero state, and the state is ().
    """
    num_steps, num_streams, height, width, dim = maps.shape
    where = {"grid": (height, width)} if layer.takes_grid else {}
    pixels = maps.reshape(num_steps, num_streams * height * width, dim)
    if remembers:
        y, state = layer(pixels, state, step_scale, **where)
    else:
        y = layer.forward_without_memory(pixels, step_scale, **where)
    return y.view(maps.shape), state
