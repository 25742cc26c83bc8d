"""A state-space layer over the two axes of an image as a spatial mixer: states run along rows and along columns.

Source: 2-D SSM: A General Spatial Layer for Visual Transformers (Baron et al., 2023). The appendix of State Space
Models for Event Cameras (Zubic et al., 2024) has results of S5-SSM2D-B, but no details. In our version, the layer
replaces each attention of a pair, and the rest of the block stays the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rvtssm.models.attention import ScaledLinear, build_drop_path, build_first_norm

if TYPE_CHECKING:
    from rvtssm.models import ModelConfig

_NUM_MODES = 16  # per direction
_LONGEST = 32.0  # pixels in which the slowest modes decay initially
_FLIPS: tuple[tuple[int, ...], ...] = ((), (-2,), (-1,), (-2, -1))  # axes along which each direction runs backwards


class SSM2D(nn.Module):
    """Connects every pixel to every other one, (B, H, W, C) -> (B, H, W, C), with weights for frames of any size.

    The layer is Roesser's model, with states h along rows and v along columns, and the same few modes for all channels:
    h[i, j] = a1 h[i, j-1] + a2 v[i, j-1] + b1 u[i, j],  v[i, j] = a3 h[i-1, j] + a4 v[i-1, j] + b2 u[i, j]. The output
    is D u plus y = c1 h + c2 v, summed over the modes and over scans from each of the four corners, with separate c for
    each channel.

    As in the real variant of the paper, every a lies in (0, 1). Our parametrisation is a1 = r s and a2 = r (1 - s), so
    that their sum r < 1 and no state can grow; a4 and a3 are analogous. With b = (1 - r) B, slow modes are not larger
    than fast ones.

    The layer is computed as a convolution with a kernel as large as the frame, by Fourier transform, in the precision
    of the weights.

    Args:
        dim: Number of channels C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        shape = len(_FLIPS), _NUM_MODES, 2  # last axis: states along rows, states along columns
        length = torch.exp(torch.rand(shape) * math.log(_LONGEST))
        self.decay = nn.Parameter(torch.exp(-1 / length).logit())  # logit of r
        self.share = nn.Parameter(torch.randn(shape))  # logit of s
        self.B = nn.Parameter(torch.ones(shape))
        self.C = nn.Parameter(torch.randn(dim, *shape) / math.sqrt(len(_FLIPS) * _NUM_MODES))
        self.D = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.D.dtype)
            size = 2 * height, 2 * width  # twice the frame, so that the convolution does not wrap around
            kernel = torch.fft.rfft2(self.kernel(height, width), dim=(0, 1))
            mixed = torch.fft.rfft2(inputs, s=size, dim=(1, 2)) * kernel
            y = torch.fft.irfft2(mixed, s=size, dim=(1, 2))[:, :height, :width]
            return torch.addcmul(y, inputs, self.D).to(x.dtype)

    def export_form(self, height: int, width: int) -> RealSSM2D:
        """Return the layer in real numbers, for maps of one size. See `rvtssm.models.contracts.take_export_forms`."""
        return RealSSM2D(self, height, width)

    def kernel(self, height: int, width: int) -> Tensor:
        """Return the convolution kernel, (2 H, 2 W, C), with negative offsets counted from the end.

        Args:
            height: Height H of a map in pixels.
            width: Width W of a map in pixels.
        """
        total = self.C.new_zeros(())
        for responses, c, flips in zip(self.responses(height, width), self.C.unbind(1), _FLIPS, strict=True):
            quarter = F.pad(torch.einsum("nshw,cns->chw", responses, c), (0, width, 0, height))
            if flips:  # along an axis that runs backwards, offset -1 comes last, and offset 0 stays first
                quarter = quarter.flip(flips).roll([1] * len(flips), flips)
            total = total + quarter
        return total.permute(1, 2, 0)

    def responses(self, height: int, width: int) -> Tensor:
        """Return the states h and v, i rows below and j columns to the right of an impulse.

        The result has a closed form. A path from the impulse to (i, j) is a sequence of transitions, j of them into h
        and i into v. One binomial counts how the transitions into h are split by t changes between h and v, another one
        how the transitions into v are. The sum over all paths is therefore a product of two matrices.

        Args:
            height: Number of rows H.
            width: Number of columns W.

        Returns:
            The states (directions, modes, 2, H, W).
        """
        log_r = F.logsigmoid(self.decay)
        log_s = F.logsigmoid(self.share)
        stay = (log_r + log_s).unbind(-1)
        turn = (log_r + F.logsigmoid(-self.share)).unbind(-1)
        b_h, b_v = ((1 - self.decay.sigmoid()) * self.B)[..., None, None].unbind(2)
        num_turns = min(height, width) + 1
        # Paths that start in h, or in v: only the first run of transitions into that state may be empty.
        first_h, other_h = _paths(width, num_turns, stay[0], turn[0])
        first_v, other_v = _paths(height, num_turns, stay[1], turn[1])
        # Paths that end in the other state than they started in have one turn back less.
        late_h = F.pad(first_h, (1, -1))
        late_v = F.pad(first_v, (1, -1))
        h = b_h * (other_v @ first_h.mT) + b_v * (late_v @ other_h.mT)
        v = b_h * (other_v @ late_h.mT) + b_v * (first_v @ other_h.mT)
        return torch.stack([h, v], dim=2)


def _paths(length: int, num_turns: int, stay: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of all sequences of k < `length` transitions into a state, t of them from the other state.

    The first result is for sequences of t + 1 runs, the first of which may be empty, the second one for t runs; both
    are (..., K, T). `stay` and `turn` are the logarithms of the weights of a transition.
    """
    k = torch.arange(length, device=stay.device, dtype=stay.dtype)[:, None]
    t = torch.arange(num_turns, device=stay.device, dtype=stay.dtype)
    weight = (k - t) * stay[..., None, None] + t * turn[..., None, None]
    first = torch.exp(_log_binomial(k, t) + weight)
    other = torch.exp(_log_binomial(k - 1, t - 1) + weight)
    return first, torch.where((k == 0) & (t == 0), torch.ones_like(other), other)  # no transition, no run: one path


def _log_binomial(n: Tensor, k: Tensor) -> Tensor:
    """Return the logarithm of the binomial coefficient "n over k", or -inf if the coefficient is 0."""
    is_some = (k >= 0) & (k <= n)
    n, k = torch.where(is_some, n, torch.zeros_like(n + k)), torch.where(is_some, k, torch.zeros_like(n + k))
    counted = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return counted.masked_fill(~is_some, -math.inf)


class RealSSM2D(nn.Module):
    """An `SSM2D` layer for frames of H x W pixels as products of real matrices, for formats without Fourier transforms.

    Args:
        layer: The layer to export.
        height: Height H of a map in pixels.
        width: Width W of a map in pixels.
    """

    spectrum: Tensor
    rows: Tensor
    columns: Tensor
    back: Tensor
    d: Tensor

    def __init__(self, layer: SSM2D, height: int, width: int) -> None:
        super().__init__()
        spectrum = torch.fft.rfft2(layer.kernel(height, width).double(), dim=(0, 1)).permute(2, 0, 1)
        rows = _waves(height, 2 * height)
        columns = _waves(width, width + 1)
        # Half of the frequencies along columns suffice; all but the first and the last of them count twice.
        weight = torch.full((width + 1, 1), 2.0).double()
        weight[[0, -1]] = 1
        back = columns * weight / (4 * height * width)
        tensors = {"spectrum": torch.view_as_real(spectrum), "rows": rows, "columns": columns, "back": back}
        for name, tensor in {**tensors, "d": layer.D}.items():
            self.register_buffer(name, tensor.detach().to(layer.D))

    def forward(self, x: Tensor) -> Tensor:
        """Mix pixels (B, H, W, C) -> (B, H, W, C)."""
        u = x.permute(0, 3, 1, 2)
        cos_rows, sin_rows = self.rows.unbind(0)  # (2 H, H)
        # the transform along columns is re - i im
        re = u @ self.columns[0].mT
        im = u @ self.columns[1].mT
        re, im = cos_rows @ re - sin_rows @ im, cos_rows @ im + sin_rows @ re
        by_re, by_im = self.spectrum.unbind(-1)
        re, im = re * by_re + im * by_im, im * by_re - re * by_im
        re, im = cos_rows.mT @ re + sin_rows.mT @ im, cos_rows.mT @ im - sin_rows.mT @ re
        y = re @ self.back[0] + im @ self.back[1]
        return y.permute(0, 2, 3, 1) + self.d * x


def _waves(length: int, count: int) -> Tensor:
    """Return cosines and sines of the first `count` frequencies over twice the length, (2, count, length) float64."""
    turns = torch.outer(torch.arange(count), torch.arange(length)) % (2 * length)
    angle = turns.double() * (math.pi / length)
    return torch.stack([angle.cos(), angle.sin()])


class SSM2DBlock(nn.Module):
    """A two-dimensional state-space layer, then an MLP, both residual: (B, H, W, C) -> (B, H, W, C).

    Args:
        dim: Number of channels C.
        model: Settings of the detector.
        normed_input: Whether the input is the output of a norm, so that the first norm is left out.
    """

    def __init__(self, dim: int, model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        layer_scale = model.layer_scale
        self.norm1 = build_first_norm(dim, normed_input)
        self.ssm: SSM2D | RealSSM2D = SSM2D(dim)
        self.mix = ScaledLinear(dim, dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), ScaledLinear(4 * dim, dim, layer_scale))
        self.drop_path = build_drop_path(model.drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mix(F.gelu(self.ssm(self.norm1(x)))))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class SSM2DPair(nn.Module):
    """Two blocks of `SSM2DBlock`: (B, H, W, C) -> (B, H, W, C).

    Args:
        dim: Number of channels C.
        partition: Ignored; it is for attention.
        model: Settings of the detector.
        normed_input: Whether the input is the output of a norm.
    """

    def __init__(self, dim: int, partition: tuple[int, int], model: ModelConfig, normed_input: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(SSM2DBlock(dim, model, normed_input), SSM2DBlock(dim, model, normed_input=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)
