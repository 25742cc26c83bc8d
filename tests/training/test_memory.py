"""The memory of a training step, estimated before the first one."""

import copy
import gc
from dataclasses import replace

import pytest
import torch
from user_errors import raises

from rvtssm.cli.train import train
from rvtssm.datasets import SamplingConfig
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import load_file
from rvtssm.models.detector import build_detector
from rvtssm.ssm import TemporalConfig
from rvtssm.training import TrainingConfig, TrainSections, loop, preflight
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.preflight import with_divided_batch

SMALL = ModelConfig(embed_dim=8, head_dim=8, num_blocks=(1, 0, 0, 0), fpn_blocks=0)


@pytest.fixture
def free(monkeypatch):
    """A function: sets how much memory this machine has left."""

    def leave(num_bytes: int) -> None:
        monkeypatch.setattr(preflight, "free_bytes", lambda: num_bytes)
        monkeypatch.setattr(preflight, "_SMALL", 0)

    return leave


def kept_by_autograd(detector, num_steps: int, num_streams: int) -> int:
    hist = torch.zeros(num_steps, num_streams, 4, *detector.frame_hw, dtype=torch.uint8)
    nothing = torch.zeros(0, 2, dtype=torch.int64)
    with preflight._counting(detector) as kept:
        outputs = detector(hist, None, 1.0, nothing)
    del outputs
    return sum(kept.values())


def test_what_two_frames_keep_tells_what_a_batch_keeps_and_nothing_is_changed():
    detector = build_detector(SMALL, TemporalConfig(), 64, 96, 2, 4).train()
    before, random = copy.deepcopy(detector.state_dict()), torch.get_rng_state()
    found = preflight.probe_step(detector, 4 * 64 * 96)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())
    frames_per_batch = found.peak(12, 0) - found.peak(0, 0) - 12 * 2 * 4 * 64 * 96
    kept = kept_by_autograd(detector, 6, 2)
    assert kept == pytest.approx(frames_per_batch / preflight._OVER_KEPT, rel=0.1)


def bytes_of_tensors() -> int:
    """Those that have memory: an export in the same process leaves tensors without any, some of unknown sizes."""
    gc.collect()
    alive = [found for found in gc.get_objects() if type(found) in (torch.Tensor, torch.nn.Parameter)]
    return sum(tensor.nbytes for tensor in alive)


def test_the_probe_frees_what_autograd_has_kept():
    detector = build_detector(SMALL, TemporalConfig(), 64, 96, 2, 4).train()
    before = bytes_of_tensors()
    preflight.probe_step(detector, 4 * 64 * 96)
    assert bytes_of_tensors() == before


def test_a_step_that_does_not_fit_is_refused_with_a_batch_that_fits(toy_config, tmp_path, free):
    config = toy_config(tmp_path, "sampling.batch_size=8", "training.steps=1")
    free(10)
    with raises("memory.too_little"):
        train(config)
    free(260_000_000)
    with raises("memory.too_little"):
        train(config)
    assert not last_checkpoint(tmp_path).exists()


def test_auto_takes_a_batch_that_fits_and_keeps_it_when_resumed(toy_config, tmp_path, free, capsys):
    words = "sampling.batch_size=auto", "training.steps=1", "sampling.chunk_length=2"
    free(10**12)
    train(toy_config(tmp_path, *words))
    assert "sampling.batch_size=auto: 8 with training.accumulate=1" in capsys.readouterr().out
    decisive = load_file(last_checkpoint(tmp_path))["decisive"]
    assert (decisive["sampling.batch_size"], decisive["training.accumulate"]) == (8, 1)
    free(10)
    train(toy_config(tmp_path, *words, "resume=auto"))


def test_a_validation_of_which_nothing_is_scored_is_refused_before_the_first_step(toy_config, tmp_path, monkeypatch):
    data_of = loop.data_of

    def strict(sections):
        data = data_of(sections)
        data.spec = replace(data.spec, min_side_px=10_000)
        return data

    monkeypatch.setattr(loop, "data_of", strict)
    with raises("labels.none_scored"):
        train(toy_config(tmp_path, "training.steps=1", "dataset.source=raw"))
    assert not last_checkpoint(tmp_path).exists()


def divided(words: str, batch_size=8, mode="mixed", **training) -> tuple[int, int]:
    sampling = SamplingConfig(mode=mode, batch_size=batch_size, total_batch=int(words))
    found = with_divided_batch(TrainSections(sampling=sampling, training=TrainingConfig(**training)))
    return found.sampling.num_chunks, found.training.accumulate


def test_the_total_batch_of_a_recipe_is_divided_over_processes_and_accumulated_batches():
    assert divided("8") == (8, 1)
    assert divided("8", devices=2) == (4, 1)
    assert divided("8", devices=2, num_nodes=2) == (2, 1)
    assert divided("12", 6) == (6, 2)
    assert divided("12", 6, devices=2) == (6, 1)
    assert divided("24", 4, devices=2, accumulate=3) == (4, 3)
    assert divided("8", accumulate=4) == (2, 4)
    assert divided("8", mode="stream", devices=8) == (1, 1)


@pytest.mark.parametrize(
    ("words", "key", "numbers"),
    [
        ({"words": "8", "devices": 3}, "setting.conflict", "use 1, 2"),
        ({"words": "12", "batch_size": 5}, "setting.conflict", "batch_size to 12, 6, 4, 3 or 2"),
    ],
)
def test_a_total_batch_that_cannot_be_divided_is_refused_with_the_numbers(words, key, numbers):
    with raises(key, numbers):
        divided(**words)


def test_a_run_keeps_its_total_batch_and_says_how_it_is_divided(toy_config, tmp_path, capsys):
    """The batch of `toy_config` has three chunks, and the total batch asks for two of them in a step."""
    train(toy_config(tmp_path, "sampling.total_batch=6", "training.steps=1"))
    assert "1 of 6 x 4 windows (2 accumulated batches x 3)" in " ".join(capsys.readouterr().out.split())
    decisive = load_file(last_checkpoint(tmp_path))["decisive"]
    assert (decisive["sampling.batch_size"], decisive["training.accumulate"]) == (3, 2)
    with raises("setting.conflict", "sampling.total_batch"):
        train(toy_config(tmp_path / "other", "sampling.total_batch=7", "training.devices=2"))


def test_auto_accumulates_to_the_total_batch(toy_config, tmp_path, free, capsys):
    words = "sampling.batch_size=auto", "sampling.total_batch=12", "training.steps=1", "sampling.chunk_length=2"
    free(10)
    with raises("memory.too_little"):
        train(toy_config(tmp_path, *words))
    assert "sampling.batch_size=auto: 2 with training.accumulate=6" in capsys.readouterr().out
