"""The memory study: its squares stop, its score counts what it says, and finished networks are not trained again."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.memory import study
from benchmarks.memory.__main__ import main, markdown, run
from benchmarks.memory.sprites import HZ, NUM_CELLS, simulate
from benchmarks.memory.study import GROUPS_S, VARIANTS, SpriteNet, Variant, average_precision, by_group, predict


def test_squares_that_stand_still_cause_noise_only_and_stay_where_they_are():
    data, again, other = simulate(4, 400, 7), simulate(4, 400, 7), simulate(4, 400, 8)
    np.testing.assert_array_equal(data.frames, again.frames)
    assert not np.array_equal(data.frames, other.frames)
    is_still = data.still_s > 0
    assert 0.3 < is_still.mean() < 0.9 and data.still_s.max() > 2
    counts = data.frames.sum(axis=(2, 3, 4))
    assert counts[is_still].mean() == pytest.approx(0.02 * 2 * 16 * 16, rel=0.1)
    assert counts[~is_still].mean() > 1.5 * counts[is_still].mean()
    for step, stream in np.argwhere(is_still[1:]):
        np.testing.assert_array_equal(data.is_covered[step + 1, stream], data.is_covered[step, stream])
        assert data.still_s[step + 1, stream] == pytest.approx(data.still_s[step, stream] + 1 / HZ)
    assert 1 < data.is_covered.sum(axis=(2, 3)).mean() < 9


def test_the_groups_are_scored_apart():
    data = simulate(8, 600, 0)
    perfect = np.where(data.is_covered, 1, -1).astype(np.float32)
    assert set(by_group(perfect, data).values()) == {100.0}
    lost = np.where(data.still_s[:, :, None, None] > 1.0, -perfect, perfect)  # forgets after a second
    found = by_group(lost, data)
    assert found["moving"] == found["0.2 to 1 s"] == 100 and found["1 to 2 s"] < 50 > found["2 to 5 s"]
    assert list(found) == list(GROUPS_S)


def test_average_precision_is_the_mean_precision_at_the_hits():
    assert average_precision(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])) == pytest.approx(
        (1 / 1 + 2 / 3) / 2
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_all_its_parameters_in_one_group_each(name):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    net, data = SpriteNet(variant.build()), simulate(2, 6, 0)
    groups = study.parameter_groups(net, 1e-3, variant.ssm_lr)
    ids = [id(p) for group in groups for p in group["params"]]
    assert len(ids) == len(set(ids)) and set(ids) == {id(p) for p in net.parameters()}
    assert groups[-1]["lr"] == 1e-3 * variant.ssm_lr
    logits, _ = net(torch.from_numpy(data.frames), net.temporal.init_state(2 * NUM_CELLS**2))
    logits.square().sum().backward()
    assert logits.shape == (6, 2, NUM_CELLS, NUM_CELLS)
    assert all(p.grad is not None for p in net.parameters())


def test_values_at_the_start_are_scaled():
    torch.manual_seed(0)
    plain = Variant("s5").build()
    torch.manual_seed(0)
    scaled = Variant("s5", start={"C": 4.0, "D": 0.0}).build()
    assert torch.equal(scaled.ssm.C, 4 * plain.ssm.C) and not scaled.ssm.D.any()
    assert torch.equal(scaled.ssm.B, plain.ssm.B) and torch.equal(scaled.ff_enc.weight, plain.ff_enc.weight)


@torch.no_grad()
@pytest.mark.parametrize("name", ["s5", "selective_s5"])
def test_with_a_normalised_drive_all_modes_start_alike(name):
    variance = {}
    for normalises_drive in (False, True):
        torch.manual_seed(0)
        ssm = Variant(name, normalises_drive=normalises_drive).build().ssm
        if name == "selective_s5":
            ssm.to_step.weight.zero_()  # the steps of zero input
        _, state = ssm(torch.randn(200, 300, study.DIM), ssm.init_state(300))
        variance[normalises_drive] = state.abs().square().mean(0)
    assert variance[False].mean() < 0.3 and variance[False].max() > 4 * variance[False].min()
    assert variance[True].min() > 0.2 and variance[True].max() < 2.5  # the rows of B have different lengths


@pytest.mark.parametrize("layer", ["s5", "selective_s5", "s7", "lstm"])
def test_scores_carry_the_state_from_the_first_step_to_the_last(layer):
    torch.manual_seed(0)
    net, data = SpriteNet(Variant(layer).build()), simulate(2, 2 * study._TEST_CHUNK + 3, 0)
    with torch.no_grad():
        whole, _ = net(torch.from_numpy(data.frames), net.temporal.init_state(2 * NUM_CELLS**2))
    np.testing.assert_allclose(predict(net, data), whole.numpy(), atol=1e-4)


def fake_training(variant, seed):
    return {"AP": dict.fromkeys(GROUPS_S, 10.0 * seed), "loss": 0.0, "parameters": 7, "cpu_seconds": 2.0}


def test_finished_networks_are_not_trained_again(tmp_path):
    path, some = tmp_path / "rows.json", {"a": Variant("s5"), "b": Variant("lstm")}
    first = run(some, 1, path, fake_training)
    assert [(row["name"], row["seed"]) for row in first] == [("a", 0), ("b", 0)]
    assert json.loads(path.read_text())["rows"] == first
    assert run(some, 1, path, pytest.fail) == first
    more = run({"a": some["a"]}, 2, path, fake_training)
    assert more[:2] == first and [(row["name"], row["seed"]) for row in more[2:]] == [("a", 1)]
    table = markdown(more)
    assert "| a | 5 ± 7.1 |" in table and "| b | 0 |" in table
    with pytest.raises(ValueError, match="holds a as"):
        run({"a": replace(some["a"], ssm_lr=0.5)}, 2, path, pytest.fail)


def test_the_command_trains_and_prints_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "_TRAIN_STEPS", 60)
    monkeypatch.setattr(study, "_TEST_STEPS", 120)
    monkeypatch.setattr(study, "NUM_STREAMS", 2)
    monkeypatch.setitem(VARIANTS, "s5", Variant("s5", num_frames=60))
    arguments = ["--json", str(tmp_path / "rows.json"), "--seeds", "1", "--only"]
    assert main([*arguments, "s5"]) == 0
    assert (tmp_path / "rows.md").read_text() in capsys.readouterr().out
    assert "| s5 | " in (tmp_path / "rows.md").read_text()
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["loss"] < 0.69 and set(row["AP"]) == set(GROUPS_S)
    with pytest.raises(SystemExit):
        main([*arguments, "s5;gru"])
    assert "choose from lstm; s5" in capsys.readouterr().err
