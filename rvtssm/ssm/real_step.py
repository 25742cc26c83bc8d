"""Single steps in real numbers, for export to formats without complex numbers: the parts that the layers share.

The real step of each layer is in the file of that layer (`TemporalLayer.real_step`). Here, a complex state is a `Pair`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rvtssm.ssm.layer import State, TemporalLayer
from rvtssm.ssm.spectrum import bandlimit_mask
from rvtssm.system.user_error import UserError


class Pair(NamedTuple):
    """A complex tensor, stored as its real and its imaginary part."""

    re: Tensor
    im: Tensor

    def times(self, other: Pair) -> Pair:
        """Return the product."""
        return Pair(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def inverse(self) -> Pair:
        """Return 1 / self."""
        size = self.re.square() + self.im.square()
        return Pair(self.re / size, -self.im / size)

    def scaled(self, factor: Tensor) -> Pair:
        """Return the product with a real factor."""
        return Pair(self.re * factor, self.im * factor)

    def plus(self, other: Pair) -> Pair:
        """Return the sum."""
        return Pair(self.re + other.re, self.im + other.im)

    def of(self, function: Callable[[Tensor], Tensor]) -> Pair:
        """Apply a function to both parts."""
        return Pair(function(self.re), function(self.im))


class RealStep(TemporalLayer):
    """A layer that takes single steps in real numbers. Its tensors are constants: an exported model is not trained.

    Args:
        discretization: A key of `rvtssm.ssm.discretize.DISCRETIZATIONS`.
        bandlimit: Bandlimit of a mask at the current step; 0 means off. A mask at the training step is part of C.
    """

    lambda_re: Tensor  # has the shape of the state of one sequence
    lambda_im: Tensor
    d: Tensor

    def __init__(self, discretization: str, bandlimit: float = 0.0) -> None:
        super().__init__()
        self.discretization = discretization
        self.bandlimit = bandlimit

    def init_state(self, num_sequences: int) -> Pair:
        """Return zeros (N, *shape) for the real and for the imaginary part."""
        zeros = self.lambda_re.new_zeros(num_sequences, *self.lambda_re.shape)
        return Pair(zeros, zeros.clone())

    def forward(self, x: Tensor, state: State | None = None, step_scale: Any = 1.0) -> tuple[Tensor, Pair]:
        """Take one step.

        Args:
            x: Inputs (1, N, H).
            state: Real and imaginary part of the state, each (N, *shape).
            step_scale: The step relative to training, (G,), one value per group of N / G consecutive sequences.

        Returns:
            The outputs (1, N, H) and the next state.
        """
        assert isinstance(state, tuple)
        before = Pair(*state).of(lambda part: part.unflatten(0, (step_scale.shape[0], -1)))
        u = x.flatten(0, 1)
        y, after = self.advance(u, before, step_scale)
        return (y + self.d * u)[None], after.of(lambda part: part.flatten(0, 1))

    @abstractmethod
    def advance(self, x: Tensor, before: Pair, step_scale: Tensor) -> tuple[Tensor, Pair]:
        """Take one step without the direct path D u.

        Args:
            x: Inputs (N, H).
            before: The state, (G, N / G, *shape).
            step_scale: The step relative to training, (G,).

        Returns:
            The outputs (N, H) and the next state.
        """

    def keep(self, **tensors: Tensor) -> None:
        """Store constants under their names, a complex one as the two parts that `pair` returns."""
        for name, tensor in tensors.items():
            parts = {name: tensor}
            if tensor.is_complex():
                parts = {f"{name}_re": tensor.real, f"{name}_im": tensor.imag}
            for key, part in parts.items():
                self.register_buffer(key, part.detach().clone())

    def pair(self, name: str) -> Pair:
        """Return a complex constant that `keep` has stored."""
        return Pair(getattr(self, f"{name}_re"), getattr(self, f"{name}_im"))

    def visible(self, states: Pair, step: Tensor) -> Pair:
        """Set the modes above the bandlimit to 0. See `rvtssm.ssm.spectrum.bandlimit_mask`.

        Args:
            states: The states, of a shape that broadcasts against (G, N / G, *shape).
            step: The current steps, of a shape that broadcasts against the states.
        """
        if not self.bandlimit:
            return states
        cycles = step * self.lambda_im.abs() / (2 * torch.pi)
        return states.scaled((cycles < self.bandlimit / 2).to(step.dtype))

    def discretize(self, dt: Tensor, step: Tensor) -> tuple[Pair, Pair]:
        """Return decay and gain. See `rvtssm.ssm.discretize`.

        Args:
            dt: The training steps.
            step: The current steps, of a shape that broadcasts against `dt`.
        """
        lambda_ = self.pair("lambda")
        if self.discretization == "bilinear":
            half = step / 2
            inverse = Pair(1 - half * lambda_.re, -half * lambda_.im).inverse()
            return Pair(1 + half * lambda_.re, half * lambda_.im).times(inverse), inverse.scaled(step)
        decay, gain = _held(lambda_, step)
        if self.discretization == "dirac":
            return decay, Pair(torch.ones_like(decay.re), torch.zeros_like(decay.re))
        if self.discretization == "async":
            _, gain = _held(lambda_, dt)
        return decay, gain


class RealSharedStep(RealStep):
    """The step of a layer whose features share their modes, as in S5: x' = decay x + gain B u, y = Re(C x) + D u.

    Args:
        layer: The layer, with B (P, H, 2), C (H, P, 2), D, `half_state` and `discretization`.
        lambda_: Its modes, (P,) complex.
        bandlimit: As in `RealStep`.
        mask: The modes that may reach the output, (P,) bool; None means all.
    """

    def __init__(self, layer: Any, lambda_: Tensor, bandlimit: float = 0.0, mask: Tensor | None = None) -> None:
        super().__init__(layer.discretization, bandlimit)
        # Re(C x) = Re C Re x - Im C Im x, so C is stored with its imaginary part negated.
        c = layer.C * layer.C.new_tensor([1, -1]) * (1 + layer.half_state)
        if mask is not None:
            c = c * mask[:, None]
        self.keep(b=torch.view_as_complex(layer.B), c=torch.view_as_complex(c), d=layer.D, **{"lambda": lambda_})

    @abstractmethod
    def steps(self, x: Tensor, step_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the training steps and the current steps, both of a shape that broadcasts to (G, N / G, P).

        Args:
            x: Inputs (N, H).
            step_scale: The step relative to training, (G, 1, 1).
        """

    def advance(self, x: Tensor, before: Pair, step_scale: Tensor) -> tuple[Tensor, Pair]:
        dt, step = self.steps(x, step_scale[:, None, None])
        decay, gain = self.discretize(dt, step)
        # Each part takes its own product, because interleaved parts would have to be copied.
        driven = self.pair("b").of(lambda matrix: F.linear(x, matrix).unflatten(0, (step_scale.shape[0], -1)))
        after = decay.times(before).plus(gain.times(driven))
        seen = self.visible(after, step).of(lambda part: part.flatten(0, 1))
        c = self.pair("c")
        return F.linear(seen.re, c.re) + F.linear(seen.im, c.im), after


def split_bandlimit(layer: Any, lambda_: Tensor, dt: Tensor) -> tuple[Tensor | None, float]:
    """Return the mask of a bandlimit at the training step, and the bandlimit at the current step; one of them is off.

    Args:
        layer: The layer, with `bandlimit` and `bandlimit_at`.
        lambda_: Its modes.
        dt: Its training steps.
    """
    if layer.bandlimit_at == "current_step":
        return None, layer.bandlimit
    return bandlimit_mask(lambda_, dt, layer.bandlimit), 0.0


def check_modes(lambda_: Tensor) -> None:
    """Raise a UserError if a mode is 0, because the real step divides by the modes."""
    if bool((lambda_.abs() == 0).any()):
        found = "a mode with lambda = 0 cannot be exported"
        raise UserError("layer.lacks", found=found, advice="train with temporal.clip_real=true")


def _held(lambda_: Pair, step: Tensor) -> tuple[Pair, Pair]:
    """Return exp(lambda step) and (exp(lambda step) - 1) / lambda, from few transcendental functions.

    There is no cancellation: expm1(a) = 2 sinh(a / 2) exp(a / 2), and cos(b) - 1 = -2 sin(b / 2)^2.
    """
    root = lambda_.re * step / 2
    turn = lambda_.im * step / 2
    grown = 2 * torch.sinh(root) * torch.exp(root)
    size = 1 + grown
    sine = torch.sin(turn)
    fallen = 2 * sine * sine
    risen = size * (2 * sine * torch.cos(turn))
    decay = Pair(size - size * fallen, risen)
    return decay, Pair(grown - size * fallen, risen).times(lambda_.inverse())
