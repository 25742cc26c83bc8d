"""One step of every temporal layer in real numbers, with the step scale as an input: for formats without complex ones.

A complex state (N, *shape) is real here, (N, *shape, 2). The numbers are those of the layers themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.discretize import DISCRETIZATIONS
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4SSM
from rvtssm.ssm.s4d import S4DSSM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.s7 import SelectiveSSM
from rvtssm.ssm.spectrum import bandlimit_mask


class Pair(NamedTuple):
    """A complex tensor as its real and its imaginary part."""

    re: Tensor
    im: Tensor

    def times(self, other: Pair) -> Pair:
        return Pair(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def inverse(self) -> Pair:
        size = self.re.square() + self.im.square()
        return Pair(self.re / size, -self.im / size)

    def scaled(self, factor: Tensor) -> Pair:
        return Pair(self.re * factor, self.im * factor)

    def plus(self, other: Pair) -> Pair:
        return Pair(self.re + other.re, self.im + other.im)


def real_step(layer: TemporalLayer) -> nn.Module:
    """A module with `forward(x (1, N, H), state, step_scale (B,)) -> y (1, N, H), state`, N a multiple of B.

    ValueError for a layer whose step does not exist, or has no form in elementary functions.
    """
    if isinstance(layer, LSTM):
        return layer  # real as it is
    if isinstance(layer, S5SSM) and not layer.bidirectional:
        return RealS5(layer)
    if isinstance(layer, S4DSSM):
        return RealS4D(layer)
    if isinstance(layer, S4SSM) and layer.discretization == "bilinear":
        return RealS4(layer)
    if isinstance(layer, SelectiveSSM):
        return RealS7(layer)
    raise ValueError(
        f"{type(layer).__name__} with these settings cannot be exported as a step whose length is an input; what can: "
        "s5 in one direction, s4d, s4 with discretization=bilinear, s7 with s7_mode=selective_dt, lstm"
    )


class _RealStep(nn.Module):
    """Its tensors are constants: what is exported is not trained."""

    lambda_re: Tensor

    def alone(self, x: Tensor, step_scale: Tensor) -> Tensor:
        """The step from the zero state, see `TemporalLayer.alone`: x (1, N, H), step_scale (B,) -> (1, N, H)."""
        y, _ = self(x, x.new_zeros(x.shape[1], *self.lambda_re.shape, 2), step_scale)
        return cast(Tensor, y)

    def keep(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone())

    def pair(self, name: str) -> Pair:
        return Pair(getattr(self, f"{name}_re"), getattr(self, f"{name}_im"))

    def keep_pair(self, name: str, values: Tensor) -> None:
        self.keep(**{f"{name}_re": values.real, f"{name}_im": values.imag})


class RealS5(_RealStep):
    """See `S5SSM`."""

    dt: Tensor
    d: Tensor
    w_in: Tensor
    w_out: Tensor
    lambda_im: Tensor

    def __init__(self, layer: S5SSM) -> None:
        super().__init__()
        lambda_, dt = layer.modes()
        self.method = _name_of(layer.discretize)
        _check_modes(lambda_)
        sign = layer.C.new_tensor([1, -1]) * (1 + layer.half_state)
        self.at_current_step = layer.bandlimit_at == "current_step"
        self.bandlimit = layer.bandlimit
        mask = bandlimit_mask(lambda_, dt, layer.bandlimit)
        c = layer.C * sign
        if mask is not None and not self.at_current_step:
            c = c * mask[:, None]
        self.keep(dt=dt, w_in=layer.B.transpose(1, 2).flatten(0, 1), w_out=c.flatten(1), d=layer.D)
        self.keep_pair("lambda", lambda_)

    def forward(self, x: Tensor, state: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        """x (1, N, H), state (N, P, 2), step_scale (B,)."""
        by_stream = step_scale.shape[0], -1
        lambda_, step = self.pair("lambda"), self.dt * step_scale[:, None, None]  # (B, 1, P)
        decay, gain = discretized(self.method, lambda_, self.dt, step)
        driven = F.linear(x[0], self.w_in).unflatten(-1, (-1, 2)).unflatten(0, by_stream)
        before = state.unflatten(0, by_stream)
        after = decay.times(_pair(before)).plus(gain.times(_pair(driven)))
        shown = after
        if self.bandlimit > 0 and self.at_current_step:
            shown = after.scaled(_below(self.lambda_im, step, self.bandlimit))
        y = F.linear(_joined(shown).flatten(-2).flatten(0, 1), self.w_out) + self.d * x[0]
        return y[None], _joined(after).flatten(0, 1)


class RealS4D(_RealStep):
    """See `S4DSSM`."""

    dt: Tensor
    d: Tensor
    lambda_im: Tensor

    def __init__(self, layer: S4DSSM) -> None:
        super().__init__()
        lambda_, dt = layer.modes()
        self.method = _name_of(layer.discretize)
        _check_modes(lambda_)
        c = torch.view_as_complex(layer.C)
        self.at_current_step = layer.bandlimit_at == "current_step"
        self.bandlimit = layer.bandlimit
        mask = bandlimit_mask(lambda_, dt, layer.bandlimit)
        if mask is not None and not self.at_current_step:
            c = c * mask
        self.keep(dt=dt, d=layer.D)
        self.keep_pair("lambda", lambda_)
        self.keep_pair("b", torch.view_as_complex(layer.B))
        self.keep_pair("c", c)

    def forward(self, x: Tensor, state: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        """x (1, N, H), state (N, H, n, 2), step_scale (B,)."""
        by_stream = step_scale.shape[0], -1
        step = self.dt * step_scale[:, None, None, None]  # (B, 1, H, 1)
        decay, gain = discretized(self.method, self.pair("lambda"), self.dt, step)
        drive = gain.times(self.pair("b")).scaled(x[0].unflatten(0, by_stream)[..., None])
        after = decay.times(_pair(state.unflatten(0, by_stream))).plus(drive)
        shown = after
        if self.bandlimit > 0 and self.at_current_step:
            shown = after.scaled(_below(self.lambda_im, step, self.bandlimit))
        y = 2 * shown.times(self.pair("c")).re.sum(-1).flatten(0, 1) + self.d * x[0]
        return y[None], _joined(after).flatten(0, 1)


class RealS4(_RealStep):
    """See `S4SSM`; the low-rank part acts through two vectors, no matrix is written out."""

    dt: Tensor
    d: Tensor

    def __init__(self, layer: S4SSM) -> None:
        super().__init__()
        self.keep(dt=layer.log_step.exp()[:, None], d=layer.D)
        self.keep_pair("lambda", torch.complex(-layer.log_real.exp(), layer.imag))
        for name in "PBC":
            self.keep_pair(name.lower(), torch.view_as_complex(getattr(layer, name)))

    def forward(self, x: Tensor, state: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        """x (1, N, H), state (N, H, n, 2), step_scale (B,)."""
        by_stream = step_scale.shape[0], -1
        half = self.dt * step_scale[:, None, None, None] / 2  # (B, 1, H, 1)
        lambda_, p, b = self.pair("lambda"), self.pair("p"), self.pair("b")
        mirrored = Pair(p.re, -p.im)
        inverse = Pair(1 - half * lambda_.re, -half * lambda_.im).inverse()
        left, right = inverse.times(p), inverse.times(mirrored)
        weight = 4 * half / (1 + 2 * half * mirrored.times(left).re.sum(-1, keepdim=True))
        before = _pair(state.unflatten(0, by_stream))
        kept = Pair(2 * inverse.re - 1, 2 * inverse.im).times(before)
        low_rank = left.scaled(-weight * right.times(before).re.sum(-1, keepdim=True))
        entering = inverse.times(b).plus(left.scaled(-weight / 2 * right.times(b).re.sum(-1, keepdim=True)))
        drive = entering.scaled(2 * half * x[0].unflatten(0, by_stream)[..., None])
        after = kept.plus(low_rank).plus(drive)
        y = 2 * after.times(self.pair("c")).re.sum(-1).flatten(0, 1) + self.d * x[0]
        return y[None], _joined(after).flatten(0, 1)


class RealS7(_RealStep):
    """See `SelectiveSSM`."""

    d: Tensor
    w_in: Tensor
    w_out: Tensor
    to_step: Tensor
    bias: Tensor

    def __init__(self, layer: SelectiveSSM) -> None:
        super().__init__()
        self.method = _name_of(layer.discretize)
        lambda_ = torch.complex(-layer.log_real.exp(), layer.imag)
        sign = layer.C.new_tensor([1, -1]) * (1 + layer.half_state)
        self.keep(w_in=layer.B.transpose(1, 2).flatten(0, 1), w_out=(layer.C * sign).flatten(1), d=layer.D)
        self.keep(to_step=layer.to_step.weight, bias=layer.to_step.bias)
        self.keep_pair("lambda", lambda_)

    def forward(self, x: Tensor, state: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        """x (1, N, H), state (N, P, 2), step_scale (B,)."""
        by_stream = step_scale.shape[0], -1
        dt = F.softplus(F.linear(x[0], self.to_step, self.bias)).unflatten(0, by_stream)  # (B, N / B, P)
        decay, gain = discretized(self.method, self.pair("lambda"), dt, dt * step_scale[:, None, None])
        driven = F.linear(x[0], self.w_in).unflatten(-1, (-1, 2)).unflatten(0, by_stream)
        after = decay.times(_pair(state.unflatten(0, by_stream))).plus(gain.times(_pair(driven)))
        y = F.linear(_joined(after).flatten(-2).flatten(0, 1), self.w_out) + self.d * x[0]
        return y[None], _joined(after).flatten(0, 1)


def discretized(method: str, lambda_: Pair, dt: Tensor, step: Tensor) -> tuple[Pair, Pair]:
    """Decay and gain of a step; see `rvtssm.ssm.discretize`. `dt` is the step at training, `step` the scaled one."""
    if method == "bilinear":
        half = step / 2
        inverse = Pair(1 - half * lambda_.re, -half * lambda_.im).inverse()
        return Pair(1 + half * lambda_.re, half * lambda_.im).times(inverse), inverse.scaled(step)
    size = torch.exp(lambda_.re * step)
    decay = Pair(size * torch.cos(lambda_.im * step), size * torch.sin(lambda_.im * step))
    if method == "dirac":
        return decay, Pair(torch.ones_like(decay.re), torch.zeros_like(decay.re))
    return decay, _held(lambda_, step if method == "zoh" else dt)


def _held(lambda_: Pair, step: Tensor) -> Pair:
    """(exp(lambda step) - 1) / lambda, without cancellation: expm1(a) = 2 sinh(a / 2) exp(a / 2)."""
    real, imag = lambda_.re * step, lambda_.im * step
    grown = 2 * torch.sinh(real / 2) * torch.exp(real / 2)
    half_sine = torch.sin(imag / 2)
    risen = Pair(grown * torch.cos(imag) - 2 * half_sine * half_sine, torch.exp(real) * torch.sin(imag))
    return risen.times(lambda_.inverse())


def _below(frequency: Tensor, step: Tensor, bandlimit: float) -> Tensor:
    """1 for modes within the bandlimit at this step, else 0; see `rvtssm.ssm.spectrum.bandlimit_mask`."""
    return (step * frequency.abs() / (2 * torch.pi) < bandlimit / 2).to(step.dtype)


def _check_modes(lambda_: Tensor) -> None:
    if bool((lambda_.abs() == 0).any()):
        raise ValueError("a mode with lambda = 0 cannot be exported; train with temporal.clip_real=true")


def _name_of(method: Any) -> str:
    return next(name for name, function in DISCRETIZATIONS.items() if function is method)


def _pair(values: Tensor) -> Pair:
    return Pair(values[..., 0], values[..., 1])


def _joined(pair: Pair) -> Tensor:
    return torch.stack([pair.re, pair.im], dim=-1)
