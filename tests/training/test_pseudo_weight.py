"""Labels of a detector count by their score in training, wherever they are stored, and uncertain ones teach nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_module import STRIDE_US, build_module, draw_counts, make_batch
from user_errors import raises

from rvtssm.datasets.store import open_sequence
from rvtssm.datasets.store_writer import sequence_writer
from rvtssm.events.labels import BOX_DTYPE, read_boxes, to_labels, write_boxes
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.parts import HEADS
from rvtssm.records import Labels, Windows
from rvtssm.training import module
from rvtssm.training.training_config import TrainingConfig

CHANNELS = {8: 8, 16: 16, 32: 32}
TARGETS = torch.tensor([[[1.0, 30, 20, 24, 16], [0, 70, 40, 30, 30]], [[0, 50, 32, 40, 20], [0, 0, 0, 0, 0]]])
NUM_TARGETS = torch.tensor([2, 1])
ONES = torch.tensor([[1.0, 1.0], [1.0, 0.0]])


def losses_of(name, weights=None):
    torch.manual_seed(0)
    head = HEADS[name](ModelConfig(head=name, rtdetr_queries=20, rtdetr_denoising=4), CHANNELS, 2, (64, 96))
    maps = {s: torch.randn(2, c, 64 // s, 96 // s) for s, c in CHANNELS.items()}
    torch.manual_seed(1)
    predictions = head(maps, (TARGETS, NUM_TARGETS))
    extra = {} if weights is None else {"weights": weights}
    return head, predictions, head.loss(predictions, TARGETS, NUM_TARGETS, **extra)


@pytest.mark.parametrize("name", ["yolox", "rtdetr"])
def test_weights_of_one_change_nothing(name):
    _, _, plain = losses_of(name)
    _, _, weighted = losses_of(name, ONES)
    for key, value in plain.items():
        torch.testing.assert_close(weighted[key], value)


@pytest.mark.parametrize(("name", "key"), [("yolox", "iou"), ("rtdetr", "giou")])
def test_a_smaller_weight_counts_less_and_zero_not_at_all(name, key):
    values = []
    for weight in (1.0, 0.25):
        head, predictions, losses = losses_of(name, torch.tensor([[0.0, 0.0], [weight, 0.0]]))
        (gradient,) = torch.autograd.grad(losses[key], [predictions[0]])  # its first four columns are boxes
        assert not gradient[0].any() and gradient[1].any()
        values.append(losses[key].detach())
    torch.testing.assert_close(0.25 * values[0], values[1])
    second = type(predictions)(*(None if field is None else field[1:] for field in predictions))
    torch.testing.assert_close(values[0], head.loss(second, TARGETS[1:], NUM_TARGETS[1:])[key].detach())


def test_an_uncertain_object_is_no_background_either():
    """No gradient of objectness where it is matched: what is there is neither rewarded nor punished."""
    gradients = []
    for weights in (ONES, torch.tensor([[0.0, 1.0], [1.0, 0.0]])):
        _, predictions, losses = losses_of("yolox", weights)
        (gradient,) = torch.autograd.grad(losses["objectness"], [predictions.rows])
        gradients.append(gradient[0, :, 4])
    is_ignored = (gradients[1] == 0) & (gradients[0] != 0)
    assert is_ignored.any() and (gradients[0][is_ignored] < 0).all()  # they were pushed up


def test_noisy_copies_of_an_uncertain_object_teach_nothing():
    """Neither those to restore nor those to reject; the copies of other objects teach as before."""
    gradients = []
    for weights in (ONES, torch.tensor([[0.0, 1.0], [1.0, 0.0]])):
        _, predictions, losses = losses_of("rtdetr", weights)
        (gradient,) = torch.autograd.grad(losses["denoising"], [predictions.noisy_logits])
        gradients.append(
            gradient.abs().sum((1, 3))[0].unflatten(0, (-1, 2, 2))
        )  # (groups, to restore or reject, objects)
    assert (gradients[0] > 0).all()
    assert not gradients[1][..., 0].any() and (gradients[1][..., 1] > 0).all()


@pytest.mark.parametrize(
    ("own", "of_others", "wanted"),
    [((0, 4), (3, 5), 1.5), ((0, 4), (0, 2), 3), ((0, 0), (0, 0), 0.5), ((6,), (2, 9), 4)],
)
def test_whether_a_match_counts_is_decided_for_all_processes_together(own, of_others, wanted, monkeypatch):
    def add_others(totals):
        totals += torch.tensor(of_others)

    monkeypatch.setattr(module, "has_others", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", add_others)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert float(build_module().matched_per_process(*own)) == wanted


def test_targets_of_a_batch_count_by_score_and_setting():
    built = build_module()
    built.settings = replace(built.settings, training=TrainingConfig(pseudo_weight=0.5))
    batch = make_batch(draw_counts(1, 2), [0, 1], [True, True])
    scores = torch.tensor([[0.0, 0.8, -0.9], [0.6, 0.0, 0.0]])
    found = built.weights_of(replace(batch, num_targets=torch.tensor([3, 1])), scores)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.4, 0.0], [0.3, 0.0, 0.0]]))
    assert batch.dt_us[0, 0] == STRIDE_US and batch.to("cpu").pseudo_scores is None

    annotated, uncertain = (
        build_module().losses_of(replace(batch, pseudo_scores=scores))["total"]
        for scores in (None, torch.full((2, 1), -0.5))
    )
    assert float(uncertain) < float(annotated)


def test_scores_survive_a_label_file_and_a_prepared_file(tmp_path):
    boxes = np.zeros(3, BOX_DTYPE)
    boxes["t"], boxes["w"], boxes["h"] = (50_000, 50_000, 100_000), 20, 20
    bounds_us = np.array([[0, 50_000], [50_000, 100_000]])
    windows = Windows(bounds_us, np.diff(bounds_us)[:, 0])
    for name, scores in (("pseudo", [0.0, 0.75, -0.5]), ("plain", [0.0, 0.0, 0.0])):
        boxes["pseudo_score"] = scores
        path = tmp_path / f"{name}_bbox.npy"
        write_boxes(path, boxes)
        assert read_boxes(path)["pseudo_score"].tolist() == scores
        assert ("pseudo_score" in (np.load(path).dtype.names or ())) == (name == "pseudo")
        labels = to_labels(read_boxes(path), windows)
        with sequence_writer(tmp_path / f"{name}.h5", windows, labels, (2, 4, 4)) as writer:
            writer.append([b"", b""])
        stored = open_sequence(tmp_path / f"{name}.h5").labels
        assert isinstance(stored, Labels) and stored.pseudo_score.tolist() == scores


def test_a_head_that_takes_no_weights_says_how_to_go_on(monkeypatch):
    built = build_module()
    monkeypatch.setattr(built.detector.head, "loss", lambda predictions, targets, num_targets, divisor: {})
    batch = replace(make_batch(draw_counts(1, 2), [0, 1], [True, True]), pseudo_scores=torch.zeros(2, 3))
    with raises("training.weights_of_loss"):
        built.losses_of(batch)
