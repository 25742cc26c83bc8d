"""The laws that authors of layers run: they hold for the layer of the page, and a wrong layer breaks them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rvtssm import testing
from rvtssm.ssm.layer import RATE_STATEMENTS, TemporalLayer, to_rows
from rvtssm.ssm.shapes import fitting_state

LEAKY = Path(__file__).parent / "plugins" / "leaky_layer.py"


class DeltaLayer(TemporalLayer):
    """A delta rule whose memory decays with the step scale, while its gate does not follow it: it is wrong."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.to_key = nn.Linear(dim, dim)
        self.to_value = nn.Linear(dim, dim)
        self.to_gate = nn.Linear(dim, 1)
        self.log_rate = nn.Parameter(torch.zeros(dim))

    def init_state(self, num_sequences: int) -> Tensor:
        dim = len(self.log_rate)
        return self.log_rate.new_zeros(num_sequences, dim, dim)

    def forward(self, x: Tensor, state=None, step_scale=1.0) -> tuple[Tensor, Tensor]:
        dim = len(self.log_rate)
        state = fitting_state(x, state, self.init_state, dim, self.log_rate, (dim, dim), step_scale=step_scale)
        scale = to_rows(step_scale, self.log_rate)
        if isinstance(scale, Tensor) and scale.ndim:
            scale = scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)
        decay = torch.exp(-self.log_rate.exp() * scale).expand(x.shape)
        outputs = []
        for x_l, decay_l in zip(x, decay, strict=True):
            key = nn.functional.normalize(self.to_key(x_l), dim=-1)
            gate = torch.sigmoid(self.to_gate(x_l))[..., None]
            state = decay_l[:, None] * state
            error = self.to_value(x_l) - (state @ key[..., None])[..., 0]
            state = state + gate * error[..., None] * key[:, None]
            outputs.append((state @ key[..., None])[..., 0])
        return x + torch.stack(outputs), state


def delta_layer() -> DeltaLayer:
    torch.manual_seed(0)
    return DeltaLayer(testing.DIM).double()


@pytest.mark.parametrize("stated", sorted(set(RATE_STATEMENTS) - {"no"}))
def test_a_layer_whose_gate_does_not_follow_the_step_breaks_the_law_whatever_it_says(stated):
    layer = delta_layer()
    layer.follows_the_rate = stated
    with pytest.raises(AssertionError, match="'no' is measured"):
        testing.the_rate_is_as_stated(layer)


def test_such_a_layer_keeps_the_other_laws():
    for law in testing.LAWS:
        law(delta_layer())  # which says that it does not follow the rate


def test_the_layer_of_the_page_keeps_all_laws_with_one_command(tmp_path):
    """In a folder without the tests of the checkout."""
    shutil.copy(LEAKY, tmp_path)
    command = [sys.executable, "-m", "rvtssm.testing", LEAKY.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(testing.LAWS) and all(line.endswith(": ok") for line in lines)


def test_a_file_without_a_layer_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty_part.py").touch()
    assert testing.main([str(tmp_path / "empty_part.py")]) == 2
    assert "adds a layer" in capsys.readouterr().out
    assert testing.main([str(tmp_path / "gone.py")]) == 2


def broken(name: str):
    """A layer that breaks one law."""
    layer = testing.built(testing.TemporalConfig())
    forward = layer.forward
    if name == "sequences_do_not_mix":
        layer.forward = lambda x, *rest: forward(x + x.mean(dim=1, keepdim=True), *rest)
    elif name == "cutting_changes_nothing":
        layer.forward = lambda x, *rest: forward(x + x.mean(dim=0, keepdim=True), *rest)
    elif name == "gradients_reach_everything":
        layer.forward = lambda x, state, *rest: forward(x, state.detach(), *rest)
    elif name == "what_does_not_fit_is_refused":
        layer.forward = lambda x, state, *rest: (x, state)
    elif name == "scales_of_every_shape_are_equal":
        layer.forward = lambda x, state, scale: forward(x, state, scale if isinstance(scale, float) else 1.0)
    return layer


@pytest.mark.parametrize(
    "name",
    [
        "sequences_do_not_mix",
        "cutting_changes_nothing",
        "gradients_reach_everything",
        "what_does_not_fit_is_refused",
        "scales_of_every_shape_are_equal",
    ],
)
def test_a_broken_law_is_seen(name):
    with pytest.raises(AssertionError):
        getattr(testing, name)(broken(name))
