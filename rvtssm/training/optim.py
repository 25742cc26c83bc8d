"""AdamW with the one-cycle schedule of the paper: a short linear warm-up, then a linear decay from the peak.

Source: State Space Models for Event Cameras (CVPR 2024), training details; values from its released configuration.
"""

import math

import torch
from torch import nn

from rvtssm.training.training_config import OptimConfig


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
