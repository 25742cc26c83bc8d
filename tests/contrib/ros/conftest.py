"""The small detector's weights as ROS names files."""

from pathlib import Path

import pytest


@pytest.fixture
def weights(weights: Path) -> str:
    """The path of the weights, a text."""
    return str(weights)
