"""`rvtssm verify`: checks a raw or prepared dataset completely and says what is wrong in which file."""

from dataclasses import replace

from rvtssm.checks.verification import verify_dataset
from rvtssm.cli.config import Config
from rvtssm.cli.console import say, say_error
from rvtssm.datasets import build_spec
from rvtssm.system.user_error import UserError


def verify(config: Config) -> int:
    """Check `dataset.raw_dir` and `dataset.prepared_dir`, if given; return 2 if anything is wrong."""
    spec, dataset = build_spec(config.dataset), config.dataset
    if not dataset.raw_dir and not dataset.prepared_dir:
        raise UserError("dataset.raw_dir=DIR or dataset.prepared_dir=DIR is needed: what to check")
    options = replace(config.preprocess, overwrite=False)
    found = verify_dataset(spec, dataset.raw_dir, dataset.prepared_dir, config.windows.settings, options)
    for name, message in found.faults:
        say_error(f"{name}: {message}")
    for name, message in found.notes:
        say(f"{name}: {message}", style="yellow")
    say(f"{found.num_checked} checked, {len(found.faults)} faults, {len(found.notes)} notes")
    return 2 if found.faults else 0
