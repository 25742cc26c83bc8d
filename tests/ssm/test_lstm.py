"""The LSTM against PyTorch's cell."""

import torch

from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.temporal_config import TemporalConfig


@torch.no_grad()
def test_the_lstm_is_that_of_pytorch():
    torch.manual_seed(0)
    ours, theirs = LSTM(5, TemporalConfig(name="lstm")), torch.nn.LSTMCell(5, 5)
    forget, enter, leave, cell = ours.gates.weight.chunk(4)
    theirs.weight_ih.copy_(torch.cat([enter, forget, cell, leave])[:, :5])
    theirs.weight_hh.copy_(torch.cat([enter, forget, cell, leave])[:, 5:])
    forget, enter, leave, cell = ours.gates.bias.chunk(4)
    theirs.bias_ih.copy_(torch.cat([enter, forget, cell, leave]))
    theirs.bias_hh.zero_()
    x, state = torch.randn(6, 3, 5), (torch.randn(3, 5), torch.randn(3, 5))
    y, end = ours(x, state, 0.3)  # it has no step to rescale
    for x_l, y_l in zip(x, y, strict=True):
        state = theirs(x_l, state)
        torch.testing.assert_close(y_l, state[0])
    torch.testing.assert_close(end, state)
