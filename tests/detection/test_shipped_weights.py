"""Weights of the package and of the repository can be read, say what they were trained on, and have a model card."""

import hashlib
from pathlib import Path

import pytest
import torch

import rvtssm
from rvtssm.models.weights import FOLDER, MODEL_CARDS, weights_names

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "weights" / "street-small.safetensors"


def test_every_model_card_is_of_weights_that_are_there():
    assert sorted(MODEL_CARDS) == weights_names()


@pytest.mark.parametrize(
    ("name", "file", "most_mb"), [("street-tiny", FOLDER / "street-tiny.safetensors", 12), (SMALL, SMALL, 25)]
)
def test_weights_are_those_of_their_card(name, file, most_mb):
    content, card = file.read_bytes(), ROOT / MODEL_CARDS["street-tiny"]
    assert hashlib.sha256(content).hexdigest()[:16] in card.read_text()  # the scores are of these weights
    assert len(content) < most_mb * 10**6
    checkpoint = rvtssm.load(name).checkpoint
    assert checkpoint.note == "trained on simulated events only"
    assert set(checkpoint.spec.class_names) == {"person", "vehicle", "two-wheeler"}
    state = checkpoint.detector.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in state.values() if tensor.is_floating_point())
