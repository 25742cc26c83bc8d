"""What the laws run over, and examples to run it on.

`VARIANTS` is every layer with every discretisation, state mode and initialisation. `CASES`, for laws that take long or
do not depend on where the parameters start, is every layer with every discretisation and state mode, the
initialisations in turn.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.discretize import DISCRETIZATIONS
from rvtssm.ssm.init import INITIAL_MODES
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer

DIM, NUM_SEQUENCES = 12, 6
TOLERANCE = 1e-5  # of the largest value


def core(name: str) -> TemporalLayer:
    """The layer of this name without the block around it, which says what is special about it."""
    layer = build_temporal_layer(TemporalConfig(name=name), 4)
    return getattr(layer, "ssm", layer)


CORES = {name: core(name) for name in TEMPORAL_LAYERS}
RATELESS = [name for name, layer in CORES.items() if layer.follows_the_rate == "no"]  # no step scale changes them
RULELESS = {name: name for name, layer in CORES.items() if layer.default_rule is None}  # and their labels
HALVABLE = [name for name, layer in CORES.items() if layer.may_halve_its_state]  # half_state is a choice
INITS = {"s4": ("legs",)}  # all others: every one


def _variants() -> dict[str, TemporalConfig]:
    variants = {label: TemporalConfig(name=name) for name, label in RULELESS.items()}
    for name in TEMPORAL_LAYERS:
        if name in RULELESS:
            continue
        for method, half_state in product(DISCRETIZATIONS, (False, True) if name in HALVABLE else (False,)):
            for init in INITS.get(name, INITIAL_MODES):
                mode = "-half" if half_state else "-full" if name in HALVABLE else ""
                variants[f"{name}-{method}{mode}-{init}"] = TemporalConfig(
                    name=name, discretization=method, half_state=half_state, init=init, state_size=DIM
                )
    variants["selective_s5-zoh-gated-legs"] = TemporalConfig(name="selective_s5", block="gated", state_size=DIM)
    return variants


def _init_in_turn(variants: dict[str, TemporalConfig]) -> dict[str, TemporalConfig]:
    chosen = {label: variants[label] for label in RULELESS.values()}
    groups: dict[str, list[str]] = {}
    for label in variants:
        if label not in RULELESS.values():
            groups.setdefault(label.rpartition("-")[0], []).append(label)
    for turn, labels in enumerate(groups.values()):
        label = labels[turn % len(labels)]
        chosen[label] = variants[label]
    return chosen


VARIANTS = _variants()
CASES = _init_in_turn(VARIANTS)
SSM_CASES = {label: config for label, config in CASES.items() if label not in RATELESS}
MASKED_CASES = {label: config for label, config in CASES.items() if hasattr(CORES[config.name], "bandlimit")}
every_layer = pytest.mark.parametrize("case", CASES)
every_ssm = pytest.mark.parametrize("case", SSM_CASES)


def build(case: str, dim: int = DIM, **changes: object) -> TemporalLayer:
    torch.manual_seed(0)
    return build_temporal_layer(replace(VARIANTS[case], **changes), dim)


def rate(case: str, scale: float | Tensor) -> float | Tensor:
    """A step scale for the layers that have one, 1 for the others."""
    return 1.0 if case in RATELESS else scale


def as_tuple(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def random_state(layer: TemporalLayer, num_sequences: int = NUM_SEQUENCES, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    zeros = layer.init_state(num_sequences)
    drawn = tuple(torch.randn(z.shape, dtype=z.dtype, generator=generator) for z in as_tuple(zeros))
    return drawn if isinstance(zeros, tuple) else drawn[0]


def steps(num_steps: int, num_sequences: int = NUM_SEQUENCES) -> Tensor:
    return torch.randn(num_steps, num_sequences, DIM, generator=torch.Generator().manual_seed(num_steps))


def assert_near(found, wanted, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * float(other.detach().abs().max()))
