"""Optional: studies over settings and seeds, and audits of memory and time step; README.md says more."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rvtssm.contrib.studies.study_report import StudyReport

__all__ = ["study"]


def study(
    axes: Mapping[str, Sequence[Any]] | None = None, settings: Mapping[str, Any] | None = None, **short: Any
) -> "StudyReport":
    """Train and score a detector at every point of a grid, as `rvtssm study` does, and return the report.

    Args:
        axes: Values by key, such as `{"temporal": ["s5", "lstm"], "seed": [0, 1, 2]}`; None varies nothing.
        settings: Values of other keys, such as `{"training.steps": 1000, "dataset.raw_dir": "data/gen1"}`.
        short: Values of keys without a dot, such as `experiment="demo"`, `hz=[20, 200]`, `out="study"`,
            `checkpoint="best.ckpt"` or `checkpoints=["a.ckpt", "b.ckpt"]`.

    Raises:
        UserError: The settings do not fit each other or the data.
    """
    from rvtssm.cli.inputs import check_inputs
    from rvtssm.contrib.studies.grid import as_words, compose_study
    from rvtssm.contrib.studies.run_study import run_study

    words = as_words({**(settings or {}), **short}, axes or {})
    config, points = compose_study(words)
    check_inputs("study", config)
    return run_study(config, points)
