"""The rows of an evaluation by their rate, as tests ask for them."""

from collections.abc import Mapping
from typing import Any

BESIDE = {"hz", "window", "low", "high", "intervals", "difference", "minus_the_first"}  # what is no metric


def by_rate(found: Mapping[str, Any], window: str | None = None) -> dict[str, dict[str, Any]]:
    """The numbers of `evaluation.json` at each rate: the metrics and what was measured beside them.

    Windows are of one kind, by default that of the first row.
    """
    window = window or found["rows"][0]["window"]
    rows = {}
    for row in found["rows"]:
        if row["window"] == window:
            rows[f"{row['hz']:g}"] = {name: value for name, value in row.items() if name not in BESIDE}
    return rows
