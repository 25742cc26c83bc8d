"""`rvtssm verify`: checks a raw or prepared dataset completely and says what is wrong with which file."""

from __future__ import annotations

from rich.console import Console

from rvtssm.config import Config
from rvtssm.datasets import build_spec
from rvtssm.preparation.verification import verify_dataset
from rvtssm.run.console import console


def verify(config: Config) -> int:
    """Check `dataset.raw_dir` and `dataset.prepared_dir`, whichever are given; 2 if anything is wrong."""
    spec, dataset = build_spec(config.dataset), config.dataset
    if not dataset.raw_dir and not dataset.prepared_dir:
        raise ValueError("dataset.raw_dir=DIR or dataset.prepared_dir=DIR is needed: what to check")
    found = verify_dataset(spec, dataset.raw_dir, dataset.prepared_dir, config.windows.settings, config.preprocess)
    errors = Console(stderr=True)
    for name, message in found.faults:
        errors.print(f"{name}: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{found.num_checked} checked, {len(found.faults)} faults", soft_wrap=True, highlight=False)
    return 2 if found.faults else 0
