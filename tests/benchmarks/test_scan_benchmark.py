"""`benchmarks.scan` at tiny shapes: its baseline is right, and its rows are complete."""

import pytest
import torch

from benchmarks import scan
from benchmarks.textbook import TextbookS5
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.s5 import S5SSM

STAGES = ((6, 4), (3, 8))


@pytest.mark.parametrize("length", [1, 2, 10, 21])  # its scan halves them, down to 1
def test_the_textbook_form_gives_the_numbers_of_our_layer(length):
    torch.manual_seed(0)
    ours = S5SSM(6, TemporalConfig(bandlimit=0.0))
    textbook = TextbookS5(ours)
    x, state = torch.randn(length, 3, 6), torch.randn_like(ours.init_state(3))
    results = []
    for layer, inputs in ((ours, x.clone()), (textbook, x.transpose(0, 1).clone())):
        y, last = layer(inputs.requires_grad_(), state, 0.5)
        y = y if layer is ours else y.transpose(0, 1)
        gradients = torch.autograd.grad(y.square().sum(), [layer.B, layer.C, layer.log_step])
        results.append((y, last, *gradients))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_every_layer_meets_every_baseline_at_every_stage():
    rows = scan.measure_times(STAGES, (3, 1), {3: 2, 1: 3}, "cpu", lambda line: None)
    compared = {(row.name, row.baseline, row.pass_, row.shape) for row in rows}
    shapes = [f"L={length} {stage}" for length in (3, 1) for stage in ("N=6 H=4", "N=3 H=8", "sum")]
    assert compared == {
        (name, baseline, pass_, shape)
        for name in scan.OURS
        for baseline in scan.BASELINES
        for pass_ in scan.PASSES
        for shape in shapes
    }
    assert len(rows) == len(compared)
    assert all(row.seconds > 0 and row.ratio > 0 and row.floor > 0 for row in rows)
