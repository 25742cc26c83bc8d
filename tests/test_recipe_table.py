"""The table of hyperparameters in docs/papers.md says what the recipe of S5 on Gen1 computes with."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rvtssm.datasets.data_config import AugmentConfig, SamplingConfig
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.model_config import ModelConfig, PostprocessConfig
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import with_layer_defaults
from rvtssm.training.training_config import OptimConfig, TrainingConfig

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "training": TrainingConfig,
    "sampling": SamplingConfig,
    "optim": OptimConfig,
    "augment": AugmentConfig,
    "windows": WindowsConfig,
    "model": ModelConfig,
    "temporal": TemporalConfig,
    "postprocess": PostprocessConfig,
}
HEAD = "| setting | paper | released code | RVT | here | where |"


def table_rows() -> list[list[str]]:
    text = (ROOT / "docs/papers.md").read_text()
    assert HEAD in text
    rows = []
    for line in text[text.index(HEAD) :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def value_of(where: str) -> Any:
    """The value of a key of the recipe, or of a name of a file of the package."""
    if ":" in where:
        module, _, name = where.partition(":")
        return getattr(importlib.import_module(f"rvtssm.{module}"), name)
    section, _, key = where.partition(".")
    recipe = yaml.safe_load((ROOT / "configs/experiment/gen1_s5_base.yaml").read_text())
    settings = SECTIONS[section](**recipe.get(section, {}))
    if section == "temporal":
        settings = with_layer_defaults(settings)
    return getattr(settings, key)


def in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(in_words, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


@pytest.mark.parametrize("row", table_rows(), ids=lambda row: row[0])
def test_the_table_of_hyperparameters_is_that_of_the_recipe(row):
    *_, here, where = row
    names = re.findall(r"`([^`]+)`", where)
    assert here == ", ".join(in_words(value_of(name)) for name in names)
