"""`benchmarks.training` at toy size: its baselines are those of RVT, and options change no loss."""

import sys

import pytest
import torch

from benchmarks.training import __main__ as command
from benchmarks.training import step
from rvtssm.models import ModelConfig
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.lstm import LSTM

TOY = ModelConfig(size="custom", embed_dim=8, head_dim=8, num_blocks=(1, 0, 0, 0), fpn_blocks=0)
SHAPE = step.Shape(2, 7, "cpu", 64, 96, TOY)


def test_the_baseline_is_an_lstm():
    torch.manual_seed(0)
    ours, theirs = LSTM(6, TemporalConfig(name="lstm")), step.SteppedLSTM(6, TemporalConfig(name="lstm"))
    theirs.load_state_dict(ours.state_dict())
    x, state = torch.randn(5, 3, 6), (torch.randn(3, 6), torch.randn(3, 6))
    for found, wanted in zip(theirs(x, state), ours(x, state), strict=True):
        torch.testing.assert_close(found, wanted)


def test_step_by_step_the_backbone_gives_the_same_predictions():
    detector = step.build_training(step.LSTM_LOOP, SHAPE).detector.eval()
    batch = step.make_batch(SHAPE)
    assert batch.frame_index[:, 0].unique().tolist() == [1, 6]
    (found,) = step.looped_predictions(detector, batch.hist, batch.frame_index)
    torch.testing.assert_close(found, detector(batch.hist, None, 1.0, batch.frame_index)[0].rows, rtol=1e-4, atol=1e-4)


def test_trainings_that_take_turns_learn_each_with_its_own_layers():
    trainings = step.build_trainings([*step.BASELINES, *step.LAYERS], SHAPE)
    before = {name: [p.clone() for p in training.layers[0].parameters()] for name, training in trainings.items()}
    taken = step.take_turns(trainings, SHAPE, 1)
    assert set(taken) == set(trainings) and all(len(seconds) == 1 for seconds in taken.values())
    for name, training in trainings.items():
        moved = [not torch.equal(p, was) for p, was in zip(training.layers[0].parameters(), before[name], strict=True)]
        assert any(moved), name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_step_is_that_of_its_chunk(prepared, monkeypatch):
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: prepared)
    short, long = (step.Shape(1, length, "cpu", 128, 160, SHAPE.model) for length in (10, 40))
    few, many = (command.measure_memory(["s5+"], shape, lambda line: None)[0]["bytes"] for shape in (short, long))
    assert 0 < 2 * few < many
