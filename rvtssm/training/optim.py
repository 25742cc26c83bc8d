"""AdamW with the one-cycle schedule of the paper: a short linear warm-up, then a linear decay from the peak.

Source: State Space Models for Event Cameras (CVPR 2024), training details; values from its released configuration.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from rvtssm.limits import check_at_least, check_positive


@dataclass
class OptimConfig:
    """The optimiser and its learning rate, which changes at every optimiser step over the whole run."""

    learning_rate: float = 2e-4  # peak
    weight_decay: float = 0.0
    warmup_fraction: float = 0.005  # share of the steps before the peak
    start_divisor: float = 20.0  # first learning rate = peak / start_divisor
    end_divisor: float = 10_000.0  # last learning rate = peak / end_divisor
    scale_with_batch: bool = False  # peak = learning_rate * sqrt(batch / 8), as in the paper
    clip_value: float = 1.0  # gradients are clipped by value, 0 = off
    h2_weight: float = 0.0  # weight of the H2 term in the loss, 0 = off; see rvtssm.training.regularize
    h2_band: tuple[float, ...] = (0.5, 10.0)  # frequencies it covers, in Nyquist rates of the training step

    def __post_init__(self) -> None:
        check_positive("optim", self, "learning_rate", "start_divisor", "end_divisor")
        check_at_least("optim", self, 0, "weight_decay", "clip_value", "h2_weight", "warmup_fraction")
        if self.warmup_fraction >= 1:
            raise ValueError(f"optim.warmup_fraction={self.warmup_fraction:g} must be less than 1")
        self.h2_band = tuple(self.h2_band)
        if len(self.h2_band) != 2 or not 0 < self.h2_band[0] < self.h2_band[1] < math.inf:
            raise ValueError(f"optim.h2_band={list(self.h2_band)}; give two Nyquist rates, 0 < lowest < highest")


def peak_learning_rate(config: OptimConfig, batch_size: int) -> float:
    """Return the peak learning rate for a batch of `batch_size` sequences over all processes."""
    return config.learning_rate * (math.sqrt(batch_size / 8) if config.scale_with_batch else 1.0)


def learning_rate_rule(config: OptimConfig, batch_size: int) -> str:
    """Say in one sentence how `scale_with_batch` changes the learning rate."""
    peak = peak_learning_rate(config, batch_size)
    return f"learning rate {config.learning_rate:g} x sqrt({batch_size} / 8) = {peak:.4g}: {batch_size} chunks per step"


def build_optimizer(
    module: nn.Module, config: OptimConfig, num_steps: int, batch_size: int, fused: bool = True
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return AdamW and its one-cycle schedule over `num_steps` steps, to be advanced after every step."""
    peak = peak_learning_rate(config, batch_size)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=peak, weight_decay=config.weight_decay, fused=fused)
    optimizer.register_load_state_dict_post_hook(_match_layout)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=peak,
        total_steps=num_steps + 1,  # Lightning also asks for the rate after the last step
        pct_start=max(config.warmup_fraction, 1.5 / (num_steps + 1)),
        anneal_strategy="linear",
        cycle_momentum=False,
        div_factor=config.start_divisor,
        final_div_factor=config.end_divisor / config.start_divisor,
    )
    return optimizer, schedule


def _match_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded averages the memory layout of their weights, which may differ from that of the run that saved them.

    A fused step reads both in the order of memory.
    """
    for weight, averages in optimizer.state.items():
        for name, value in averages.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                averages[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
