"""The table of hyperparameters in docs/papers.md says what the recipe of S5 on Gen1 computes with."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rvtssm.cli.main import main
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import with_layer_defaults

ROOT = Path(__file__).parents[1]
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


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """What `--config` prints of the recipe."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main(["train", "experiment=gen1_s5_base", "--config"]) == 0
    return yaml.safe_load(text.getvalue())


def value_of(printed: dict[str, Any], where: str) -> Any:
    """The value of a key of the recipe."""
    value: Any = printed
    for part in where.split("."):
        value = value[part]
    if value is None and where.startswith("temporal."):  # as the layer has it
        return getattr(with_layer_defaults(TemporalConfig(name="s5")), part)
    return value


def in_words(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


@pytest.mark.parametrize("row", table_rows(), ids=lambda row: row[0])
def test_the_table_of_hyperparameters_is_that_of_the_recipe(printed, row):
    *_, here, where = row
    names = re.findall(r"`([^`]+)`", where)
    assert here == ", ".join(in_words(value_of(printed, name)) for name in names)
