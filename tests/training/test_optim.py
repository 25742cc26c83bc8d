"""The learning rate follows the recipe of the paper."""

import pytest
import torch

from rvtssm.training.optim import build_optimizer, learning_rate_rule, peak_learning_rate
from rvtssm.training.training_config import OptimConfig


def rates(num_steps: int, config: OptimConfig) -> list[float]:
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), config, num_steps, batch_size=8)
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_warm_up_peak_and_linear_decay():
    found = torch.tensor(rates(2000, OptimConfig(learning_rate=1e-3)))
    assert found[0] == pytest.approx(1e-3 / 20)
    assert found.max() == pytest.approx(1e-3, rel=0.02)
    assert int(found.argmax()) == pytest.approx(10, abs=1)  # 0.5 % of the steps
    assert found[-1] == pytest.approx(1e-3 / 10_000, abs=1e-6)
    decay = found[20:].diff()
    assert torch.allclose(decay, decay.mean().expand_as(decay), rtol=1e-2)


def test_every_number_of_the_recipe_can_be_another():
    config = OptimConfig(learning_rate=1e-3, weight_decay=0.3, warmup_fraction=0.25)
    optimizer, _ = build_optimizer(torch.nn.Linear(1, 1), config, num_steps=400, batch_size=8)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3
    found = torch.tensor(rates(400, config))
    assert found[0] == pytest.approx(1e-3 / 20)
    assert int(found.argmax()) == pytest.approx(100, abs=1)
    assert found[-1] == pytest.approx(1e-3 / 10_000, abs=4e-6)  # the decay goes on for one step


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_short_runs_have_a_schedule(num_steps):
    assert all(0 < rate <= 2e-4 for rate in rates(num_steps, OptimConfig()))


def test_the_rule_for_larger_batches():
    assert peak_learning_rate(OptimConfig(), 32) == 2e-4
    assert peak_learning_rate(OptimConfig(scale_with_batch=True), 32) == pytest.approx(4e-4)
    assert peak_learning_rate(OptimConfig(scale_with_batch=True), 12) == pytest.approx(2.45e-4, rel=1e-2)
    config = OptimConfig(scale_with_batch=True)
    optimizer, _ = build_optimizer(torch.nn.Linear(1, 1), config, num_steps=9, batch_size=32)
    assert optimizer.param_groups[0]["max_lr"] == pytest.approx(4e-4)
    said = learning_rate_rule(config, 32)
    assert said == "learning rate 0.0002 x sqrt(32 / 8) = 0.0004: 32 chunks per step"
