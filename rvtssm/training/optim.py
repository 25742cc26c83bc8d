"""AdamW or Muon with the one-cycle schedule of the paper: a short linear warm-up, then a linear decay from the peak.

Source: State Space Models for Event Cameras (CVPR 2024), training details; values from its released configuration.
"""

import math
import re
from typing import Any

import torch
from torch import nn

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.training.muon import Muon
from rvtssm.training.training_config import OptimConfig

# As in RVT: the first learning rate is a twentieth of the peak, the last one a ten-thousandth.
_START_DIVISOR, _END_DIVISOR = 20.0, 10_000.0


def peak_learning_rate(config: OptimConfig, batch_size: int) -> float:
    """Return the peak learning rate of `config` for a batch of `batch_size` sequences over all processes."""
    return config.learning_rate * (math.sqrt(batch_size / 8) if config.scale_with_batch else 1.0)


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
    weights = {
        id(part.weight): name
        for name, part in detector.named_modules()
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1)
    }
    of_ssm = {
        id(parameter)
        for part in detector.modules()
        if isinstance(part, TemporalLayer) and isinstance(ssm := getattr(part, "ssm", None), TemporalLayer)
        for parameter in ssm.parameters()
    }
    ends = {key for key, name in weights.items() if re.search(r"_out(\.|$)", name)}
    ends |= set(list(weights)[:1])
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in detector.parameters():
        if parameter.requires_grad:
            key = id(parameter)
            is_matrix = config.name == "muon" and key in weights and key not in of_ssm and key not in ends
            rate = peak * (config.ssm_factor if key in of_ssm else 1.0)
            decay = config.weight_decay if key in weights else 0.0
            groups.setdefault((rate, decay, is_matrix), []).append(parameter)
    return [
        {"params": params, "lr": rate, "weight_decay": decay, "is_matrix": is_matrix}
        for (rate, decay, is_matrix), params in groups.items()
    ]


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
        div_factor=_START_DIVISOR,
        final_div_factor=_END_DIVISOR / _START_DIVISOR,
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
