"""Weights that come with the package can be read, say what they were trained on, and have a model card of their own."""

import hashlib
from pathlib import Path

import pytest
import torch

import rvtssm
from rvtssm.models.named_weights import FOLDER, MODEL_CARDS, weights_names

ROOT = Path(__file__).parents[2]


def test_every_model_card_is_of_weights_that_are_there():
    assert sorted(MODEL_CARDS) == weights_names()


@pytest.mark.parametrize("name", sorted(MODEL_CARDS))
def test_shipped_weights_are_those_of_their_card(name):
    file, card = FOLDER / f"{name}.safetensors", ROOT / MODEL_CARDS[name]
    assert hashlib.sha256(file.read_bytes()).hexdigest()[:16] in card.read_text()  # the scores are of these weights
    checkpoint = rvtssm.load(name).checkpoint
    assert checkpoint.note == "trained on simulation only"
    assert set(checkpoint.spec.class_names) == {"person", "vehicle", "two-wheeler"}
    state = checkpoint.detector.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in state.values() if tensor.is_floating_point())
