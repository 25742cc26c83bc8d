"""Fixtures and settings that every test shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# no deadline: the first call of a kernel compiles it; derandomised: a failure is the same on every machine
settings.register_profile("rvtssm", deadline=None, derandomize=True)
settings.load_profile("rvtssm")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder with recorded outputs of the official code."""
    folder = Path(os.environ.get("RVTSSM_GOLDEN_DIR") or Path(__file__).parent / "golden")
    if not folder.is_dir():
        pytest.fail(f"no golden data at {folder}; set RVTSSM_GOLDEN_DIR to the folder that holds them")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu run where there is a CUDA device."""
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_tests:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per module, for examples that hypothesis makes by the hundred."""
    return tmp_path_factory.mktemp("scratch")
