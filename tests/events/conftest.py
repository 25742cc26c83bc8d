"""A folder for tests that write the same file again and again."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per module, for examples that hypothesis makes by the hundred."""
    return tmp_path_factory.mktemp("scratch")
