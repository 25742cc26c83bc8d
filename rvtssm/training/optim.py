"""What the section `optim` decides: AdamW or Muon, the one-cycle schedule of the paper, and the H2 term of the loss.

The schedule is a short linear warm-up, then a linear decay from the peak.

Source: State Space Models for Event Cameras (CVPR 2024), training details; values from its released configuration.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.system.user_error import UserError
from rvtssm.training import OptimConfig

# The polynomial that pushes all singular values towards 1 within five rounds (Jordan et al., 2024).
_A = 3.4445
_B = -4.7750
_C = 2.0315
_ROUNDS = 5
_MOMENTUM = 0.95  # of Nesterov, for the matrices
_RMS = 0.2  # root mean square of a step of AdamW, which Muon's step matches


def peak_learning_rate(config: OptimConfig, batch_size: int) -> float:
    """Return the peak learning rate of `config` for a batch of `batch_size` sequences over all processes."""
    if config.scale_with_batch:
        return config.learning_rate * math.sqrt(batch_size / 8)
    return config.learning_rate


def learning_rate_rule(config: OptimConfig, batch_size: int) -> str:
    """Describe in one sentence how `scale_with_batch` changes the learning rate."""
    peak = peak_learning_rate(config, batch_size)
    return f"learning rate {config.learning_rate:g} x sqrt({batch_size} / 8) = {peak:.4g}: {batch_size} chunks per step"


def parameter_groups(detector: nn.Module, config: OptimConfig, peak: float) -> list[dict[str, Any]]:
    """Return the trained parameters in groups with equal options.

    Weight decay applies only to the weights of linear and convolutional layers. It excludes norms and biases, and
    Lambda, the step, B, C and D of state-space layers, whose learning rate is multiplied by `ssm_factor` (as in S5,
    Smith et al., 2023). With Muon, matrices are the weights of linear and convolutional layers, except for the first
    layer, the last ones (whose names end in `_out`) and those inside a state-space layer.

    Args:
        detector: The detector.
        config: Settings of the optimiser.
        peak: The peak learning rate.

    Returns:
        Groups with `params`, `lr`, `weight_decay` and `is_matrix`.
    """
    weights: dict[int, str] = {}
    of_ssm: set[int] = set()
    for name, part in detector.named_modules():
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1):
            weights[id(part.weight)] = name
        # The parameters inside state-space layers, which have a learning rate of their own.
        ssm = getattr(part, "ssm", None)
        if isinstance(part, TemporalLayer) and isinstance(ssm, TemporalLayer):
            of_ssm.update(map(id, ssm.parameters()))
    # The first and the last layers, which Muon leaves to AdamW.
    ends = {key for key, name in weights.items() if re.search(r"_out(\.|$)", name)}
    ends |= set(list(weights)[:1])
    # Parameters with equal options are one group.
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in detector.parameters():
        if parameter.requires_grad:
            key = id(parameter)
            is_matrix = config.name == "muon" and key in weights and key not in of_ssm and key not in ends
            rate = peak
            decay = 0.0
            if key in of_ssm:
                rate *= config.ssm_factor
            if key in weights:
                decay = config.weight_decay
            groups.setdefault((rate, decay, is_matrix), []).append(parameter)
    described = []
    for (rate, decay, is_matrix), params in groups.items():
        described.append({"params": params, "lr": rate, "weight_decay": decay, "is_matrix": is_matrix})
    return described


def build_optimizer(
    module: nn.Module,
    config: OptimConfig,
    num_steps: int,
    batch_size: int,
    fused: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the optimiser and its one-cycle schedule, which advances after every step.

    Args:
        module: The detector.
        config: Settings of the optimiser.
        num_steps: Optimiser steps of the whole run.
        batch_size: Sequences per optimiser step, over all processes.
        fused: Update all weights in one kernel.
        dtype: Data type of the products with which Muon orthogonalises.
    """
    peak = peak_learning_rate(config, batch_size)
    groups = parameter_groups(module, config, peak)
    optimizer: torch.optim.Optimizer
    if config.name == "muon":
        optimizer = Muon(groups, lr=peak, fused=fused, dtype=dtype)
    else:
        optimizer = torch.optim.AdamW(groups, lr=peak, fused=fused)
    optimizer.register_load_state_dict_post_hook(_match_layout)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in groups],
        total_steps=num_steps + 1,  # Lightning also asks for the rate after the last step
        pct_start=max(config.warmup_fraction, 1.5 / (num_steps + 1)),
        anneal_strategy="linear",
        cycle_momentum=False,
        div_factor=config.start_divisor,
        final_div_factor=config.end_divisor / config.start_divisor,
    )
    return optimizer, schedule


def _match_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded averages the memory layout of their weights, which may differ from the run that saved them.

    A fused step reads both in memory order.
    """
    for weight, averages in optimizer.state.items():
        for name, value in averages.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                averages[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


class Muon(torch.optim.Optimizer):
    """Optimises groups with `is_matrix=True` with Muon, and all others with AdamW.

    Muon steps weight matrices along their orthogonalised momentum. `torch.optim.Muon` refuses the weights of
    convolutions and processes matrices one by one. Here a convolution is treated as the matrix of its output channels,
    and matrices of the same shape are orthogonalised together.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The step size follows Liu
    et al., "Muon is Scalable for LLM Training" (2025), so that one learning rate serves both kinds of parameters.

    Args:
        groups: Parameter groups as for AdamW, each with a key `is_matrix`. A parameter (out, ...) of a matrix group is
            treated as a matrix (out, the rest).
        lr: Learning rate of groups that do not set their own. Their weight decay is 0.
        fused: Whether AdamW runs in one kernel.
        dtype: Data type of the products that orthogonalise.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        fused: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        adamw = torch.optim.AdamW([torch.zeros(1)], lr=lr, weight_decay=0.0, fused=fused)
        super().__init__(groups, {**adamw.defaults, "momentum": _MOMENTUM, "is_matrix": False})
        self._adamw = adamw
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step and return the loss, or None without a closure.

        Args:
            closure: Computes the gradients and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._adamw.state = self.state
        self._adamw.param_groups = [group for group in self.param_groups if not group["is_matrix"]]
        self._adamw.step()
        for group in self.param_groups:
            if group["is_matrix"]:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
            update = weight.grad.lerp(state["momentum"], group["momentum"]).flatten(1)
            alike[update.shape].append((weight, update))
        for shape, of_shape in alike.items():
            directions = orthogonalized(torch.stack([update for _, update in of_shape]).to(self.dtype))
            size = group["lr"] * _RMS * max(shape) ** 0.5
            for (weight, _), direction in zip(of_shape, directions, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(direction.reshape(weight.shape).to(weight.dtype), alpha=size)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and with singular values near 1.

    The singular values lie between about 0.7 and 1.2, except for those that were nearly 0.

    Args:
        matrices: (N, rows, columns).
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT.contiguous() if is_tall else matrices  # products of transposed views are slower
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if is_tall else x


def h2_term(layers: Sequence[TemporalLayer], band: tuple[float, ...]) -> Tensor:
    """Return the sum of the layers' H2 norms over a frequency band, which keeps the response to high frequencies small.

    The paper publishes neither the band nor the weight. Our band is from half the Nyquist rate of the training step,
    the limit of the paper's mask, to the Nyquist rate of a step ten times shorter, the finest that the paper evaluates.
    We measured the weight on the demo's detector with S5 and no mask: 240 steps without the term, then 40 with it (same
    batches, learning rate 1e-3 to 0). `beyond` is the norm in the band, `below` the norm from 0.01 to 0.25 Nyquist
    rates, and `loss` the detection loss over the last 20 steps:

    weight  beyond  below  loss
         0   10.20   9.95  6.37
      0.01    8.39   9.95  6.37
       0.1    6.62   9.73  6.39
         1    6.01   8.82  6.42

    Use 0.1: it removes most of what ten times the weight removes, and hardly changes `below` and the loss. Its gradient
    on the layers is then half as large as that of the detection loss. So short a run shows no effect on AP: at 20 and
    100 Hz it is 13.0 and 4.7 without the term, 12.4 and 4.4 with 0.1, one seed.

    The norm is a closed form in s4d and s5 and a quadrature in s4, in full precision. Value and gradient take 0.4 to 1
    s per step for the widths of the base model on one core.

    Args:
        layers: The layers that carry a state.
        band: Lowest and highest frequency, in Nyquist rates of the training step.

    Raises:
        UserError: A layer has no such norm, or there is no layer.
    """
    if not layers:
        raise UserError(
            "setting.conflict", name="temporal.strides", found="[]", needed="no state has a norm to keep small"
        )
    return torch.stack([layer.h2_norm(math.pi * band[0], math.pi * band[1]) for layer in layers]).sum()
