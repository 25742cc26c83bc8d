"""The laws of temporal layers. They check a layer of your own with one command, without the tests of the checkout.

    python -m rvtssm.testing my_layer.py

The file adds the layer to TEMPORAL_LAYERS, as for `plugins=[my_layer.py]`. A broken law is named with what was found.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import RATE_STATEMENTS, State, TemporalLayer
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.extras import import_plugins
from rvtssm.system.user_error import UserError

DIM = 12
NUM_SEQUENCES = 6
TOLERANCE = 1e-9  # of the largest value; laws run in float64
_TINY_STEP = 1e-4  # in steps of training
_SHORT = 1 / 16  # time over which an approximation is compared, in steps of training; its fastest modes count as well
_SMALL = 0.05  # a share of the largest value that a continuous layer changes less in a tiny step
_RATIO = 3.0  # by which errors shrink at least if steps are eight times as short


def as_tuple(state: State) -> tuple[Tensor, ...]:
    """Return a state as a tuple of its tensors."""
    return state if isinstance(state, tuple) else (state,)


def random_state(layer: TemporalLayer, num_sequences: int = NUM_SEQUENCES, seed: int = 1) -> State:
    """Return a state with standard normal values, those of a complex one in both parts."""
    generator = torch.Generator().manual_seed(seed)
    zeros = layer.init_state(num_sequences)
    drawn = tuple(torch.randn(zero.shape, dtype=zero.dtype, generator=generator) for zero in as_tuple(zeros))
    return drawn if isinstance(zeros, tuple) else drawn[0]


def steps(num_steps: int, num_sequences: int = NUM_SEQUENCES, dim: int = DIM) -> Tensor:
    """Return random inputs (L, N, D) float64."""
    generator = torch.Generator().manual_seed(num_steps)
    return torch.randn(num_steps, num_sequences, dim, generator=generator, dtype=torch.float64)


def difference(found: State, wanted: State) -> float:
    """Return the largest difference of two states or outputs, relative to the largest value of `wanted`."""
    worst = 0.0
    for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
        scale = float(other.abs().max())
        worst = max(worst, float((one - other).abs().max()) / (scale or 1.0))
    return worst


def check_near(what: str, found: State, wanted: State, tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError if two states or outputs differ."""
    if not difference(found, wanted) <= tolerance:
        raise AssertionError(f"{what}: they differ by {difference(found, wanted):.1e} of the largest value")


@torch.no_grad()
def cutting_changes_nothing(layer: TemporalLayer) -> None:
    """A sequence that is cut anywhere, or fed one step at a time, gives the same outputs and the same state."""
    x = steps(9)
    state = random_state(layer)
    varying = torch.rand(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    scales: tuple[float | Tensor, ...] = (1.0, 0.3, varying)
    for scale in scales:
        whole, end = layer(x, state, scale)
        for cuts in ([1], [4], [2, 3, 8], list(range(1, 9))):
            outputs = []
            current = state
            for start, stop in zip([0, *cuts], [*cuts, len(x)], strict=True):
                part = scale[start:stop] if isinstance(scale, Tensor) else layer.prepare(scale)
                y, current = layer(x[start:stop], current, part)
                outputs.append(y)
            check_near(f"outputs after cuts at {cuts}", torch.cat(outputs), whole)
            check_near(f"state after cuts at {cuts}", current, end)


@torch.no_grad()
def sequences_do_not_mix(layer: TemporalLayer) -> None:
    """Every sequence is computed as if it were alone."""
    x = steps(4)
    state = random_state(layer)
    y, _ = layer(x, state)
    alone = tuple(part[2:3] for part in as_tuple(state))
    found, _ = layer(x[:, 2:3], alone if isinstance(state, tuple) else alone[0])
    check_near("outputs of one sequence alone", found, y[:, 2:3])


@torch.no_grad()
def scales_of_every_shape_are_equal(layer: TemporalLayer) -> None:
    """A step scale is the same as a number, per group of sequences, and per step."""
    x = steps(5)
    state = random_state(layer)
    y, end = layer(x, state, 0.3)
    for shape in [(), (1,), (1, 2), (1, NUM_SEQUENCES), (5, 1), (5, 3)]:
        # A scale that requires a gradient takes the general way; one that does not is seen to be constant.
        for requires_grad in (False, True):
            scale = torch.full(shape, 0.3, dtype=torch.float64).requires_grad_(requires_grad)
            found, found_end = layer(x, state, scale)
            check_near(f"outputs for a step scale of the shape {shape}", found, y)
            check_near(f"state for a step scale of the shape {shape}", found_end, end)


def gradients_reach_everything(layer: TemporalLayer) -> None:
    """The loss of later steps has a gradient for the carried state and for every parameter."""
    x = steps(5)
    state = random_state(layer)
    first = tuple(part.requires_grad_() for part in as_tuple(state))
    _, middle = layer(x[:2], state)
    y, _ = layer(x[2:], middle)
    y.square().sum().backward()
    named = [("the carried state", part) for part in first] + list(layer.named_parameters())
    for name, tensor in named:
        if tensor.grad is None or not tensor.grad.abs().max() > 0:
            raise AssertionError(f"no gradient reaches {name}")


@torch.no_grad()
def no_weights_make_it_unstable(layer: TemporalLayer) -> None:
    """Whatever training does to the parameters, a constant input leads to a state that stays where it is."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator))
    x = steps(1)[:, :1].expand(2000, -1, -1)
    y, early = layer(x, layer.init_state(1))
    _, late = layer(x, early)
    for one, other in zip(as_tuple(early), as_tuple(late), strict=True):
        if not (y.isfinite().all() and other.abs().max() < 2 * one.abs().max()):
            raise AssertionError("after 4000 steps of a constant input the state is not finite or still grows")


@torch.no_grad()
def what_does_not_fit_is_refused(layer: TemporalLayer) -> None:
    """An input, a state, a step scale or a precision that does not fit is a UserError."""
    x = steps(4)
    state = layer.init_state(NUM_SEQUENCES)
    wrong: Mapping[str, tuple[Any, ...]] = {
        "an input with too few features": (x[..., :-1], state),
        "a state of too few sequences": (x, layer.init_state(NUM_SEQUENCES - 1)),
        "a step scale of too many steps": (x, state, torch.ones(5, 1, dtype=torch.float64)),
        "a step scale below zero": (x, state, -1.0),
    }
    for what, arguments in wrong.items():
        try:
            layer(*arguments)
        except UserError:
            continue
        raise AssertionError(f"{what} is not refused with a UserError")


@torch.no_grad()
def an_exported_step_gives_the_same(layer: TemporalLayer) -> None:
    """The real step, if there is one, computes the steps of the layer."""
    try:
        step = layer.real_step()
    except UserError:
        return
    x = steps(3)
    state = layer.init_state(NUM_SEQUENCES)
    carried = step.init_state(NUM_SEQUENCES)
    for x_l, scale in zip(x, (1.0, 0.2, 1.7), strict=True):
        wanted, state = layer(x_l[None], state, scale)
        found, carried = step(x_l[None], carried, torch.tensor([scale], dtype=torch.float64))
        check_near("outputs of the exported step", found, wanted, 1e-6)


@torch.no_grad()
def _parts_at(
    layer: TemporalLayer, num_finer: int, is_uneven: bool = False, duration: float = 1.0
) -> tuple[State, State]:
    """Return what is left of a state, and what inputs have added, if each of 3 inputs is held for finer steps.

    Args:
        layer: The layer.
        num_finer: Number of steps per input.
        is_uneven: Whether these steps differ.
        duration: Time that an input is held, in steps of training.
    """
    x = steps(3).repeat_interleave(num_finer, dim=0)
    sizes = torch.ones(num_finer, 1, dtype=torch.float64)
    if is_uneven:
        sizes += torch.rand(num_finer, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = (duration * sizes / sizes.sum()).repeat(3, 1)
    _, with_state = layer(x, random_state(layer), scale)
    _, driven = layer(x, layer.init_state(NUM_SEQUENCES), scale)
    pairs = zip(as_tuple(with_state), as_tuple(driven), strict=True)
    return tuple(one - other for one, other in pairs), driven


@torch.no_grad()
def _is_continuous(layer: TemporalLayer) -> bool:
    """Return whether a step of hardly any duration hardly changes a state."""
    state = random_state(layer)
    _, after = layer(steps(1), state, _TINY_STEP)
    return difference(after, state) < _SMALL


def measured_rate(layer: TemporalLayer) -> str:
    """Return how the state of a layer depends on the length of its steps, one of RATE_STATEMENTS.

    The state is compared between steps of training and five steps, even and uneven, of the same duration together. If
    it differs, it is compared between ever shorter steps, where an approximation converges.
    """
    coarse = _parts_at(layer, 1)
    finer = [_parts_at(layer, 5, is_uneven) for is_uneven in (False, True)]
    keeps = max(difference(kept, coarse[0]) for kept, _ in finer)
    adds = max(difference(added, coarse[1]) for _, added in finer)
    if max(keeps, adds) <= TOLERANCE:
        return "exact"
    errors = []
    for num_finer in (8, 64):
        kept, added = _parts_at(layer, num_finer, duration=_SHORT)
        finer_kept, finer_added = _parts_at(layer, 2 * num_finer, duration=_SHORT)
        errors.append(max(difference(kept, finer_kept), difference(added, finer_added)))
    if errors[1] < min(_SMALL, errors[0] / _RATIO) and _is_continuous(layer):
        return "approximate"
    return "decay_only" if keeps <= TOLERANCE else "no"


def the_rate_is_as_stated(layer: TemporalLayer) -> None:
    """`follows_the_rate` says what the steps of the layer do."""
    stated = layer.follows_the_rate
    if stated not in RATE_STATEMENTS:
        raise AssertionError(f"follows_the_rate={stated!r}; choose from {', '.join(RATE_STATEMENTS)}")
    if stated != (found := measured_rate(layer)):
        raise AssertionError(f"follows_the_rate says {stated!r}, and {found!r} is measured ({RATE_STATEMENTS[found]})")


LAWS: tuple[Callable[[TemporalLayer], None], ...] = (
    cutting_changes_nothing,
    sequences_do_not_mix,
    scales_of_every_shape_are_equal,
    gradients_reach_everything,
    what_does_not_fit_is_refused,
    an_exported_step_gives_the_same,
    the_rate_is_as_stated,
    no_weights_make_it_unstable,
)


def built(config: TemporalConfig, dim: int = DIM) -> TemporalLayer:
    """Return a layer in float64 whose weights are the same each time."""
    torch.manual_seed(0)
    return build_temporal_layer(config, dim).double()


def main(arguments: list[str] | None = None) -> int:
    """Run all laws on the layers that files add to the table; return 0 if all hold, 1 if one is broken, else 2."""
    files = sys.argv[1:] if arguments is None else arguments
    known = set(TEMPORAL_LAYERS)
    write = sys.stdout.write
    try:
        import_plugins(files)
    except UserError as error:
        write(f"{error}\n")
        return 2
    # The layers that the files have added.
    names = [name for name in TEMPORAL_LAYERS if name not in known]
    if not names:
        write("name a file that adds a layer to TEMPORAL_LAYERS: python -m rvtssm.testing my_layer.py\n")
        return 2
    num_broken = 0
    for name in names:
        # Each law sees a new layer.
        for law in LAWS:
            try:
                law(built(TemporalConfig(name=name)))
                answer = "ok"
            except AssertionError as error:
                answer = f"BROKEN: {error}"
                num_broken += 1
            write(f"{name}: {law.__name__.replace('_', ' ')}: {answer}\n")
    return min(num_broken, 1)


if __name__ == "__main__":
    sys.exit(main())
