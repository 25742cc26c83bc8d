"""The convolution kernel of S4 as its paper computes it, which the Krylov sequences of our layer are compared with."""

import torch
from torch import Tensor

from rvtssm.ssm.s4 import S4SSM


def cauchy_kernel(layer: S4SSM, length: int, step_scale: float = 1.0) -> Tensor:
    """The first `length` outputs after an impulse (H, length), for `bilinear`, by the method of the paper.

    Its generating function is taken at the roots of unity, where Woodbury's identity leaves four Cauchy sums, and
    transformed back.
    """
    system = layer.prepare(step_scale)
    a = system.a[0, 0]
    # Without what lies beyond the length, the generating function is that of an endless kernel.
    row = system.c[:, None]
    row = (row - row @ torch.linalg.matrix_power(a, length)).unflatten(-1, (-1, 2))[:, 0]
    dt = (layer.log_step.exp() * step_scale)[:, None]
    turn = torch.arange(length // 2 + 1, device=dt.device, dtype=dt.dtype) * (-2 * torch.pi / length)
    z = torch.polar(torch.ones_like(turn), turn)
    transformed = 2 * dt * layer.resolvent(torch.view_as_complex(row).conj() / 2, 2 * (1 - z), (1 + z) * dt)
    kernel: Tensor = torch.fft.irfft(transformed, n=length)
    return kernel
