"""The loss of accuracy at other rates than that of the training, and published rows for comparison."""

import math
from collections.abc import Mapping

from rvtssm.records.settings import is_same_rate

REFERENCE_HZ = 20.0  # the rate at which the published models are trained

# AP in percent at 20 / 40 / 80 / 100 / 200 Hz, trained at 20 Hz: Zubic et al., CVPR 2024, and the papers it cites
PUBLISHED_HZ = (20.0, 40.0, 80.0, 100.0, 200.0)
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "gen1": {
        "RVT": (47.16, 35.13, 21.98, 18.61, 8.35),
        "S5-ViT-B": (47.71, 46.44, 45.08, 42.49, 39.84),
        "GET": (47.90, 34.15, 19.97, 15.13, 5.35),
    },
    "onempx": {
        "RVT": (47.40, 42.51, 33.20, 30.29, 18.15),
        "S5-ViT-B": (47.80, 46.49, 46.11, 45.80, 39.70),
        "GET": (48.40, 40.51, 30.30, 28.11, 15.44),
    },
}


def performance_drop(value_by_hz: Mapping[float, float], reference_hz: float = REFERENCE_HZ) -> float:
    """Return the value at the reference rate minus the mean over all other rates, in the unit of the values.

    Args:
        value_by_hz: The values by rate.
        reference_hz: The reference rate.

    Returns:
        NaN if the reference rate or every other rate is missing.
    """
    reference = [value for hz, value in value_by_hz.items() if is_same_rate(hz, reference_hz)]
    others = [value for hz, value in value_by_hz.items() if not is_same_rate(hz, reference_hz)]
    if not reference or not others:
        return math.nan
    return reference[0] - sum(others) / len(others)


def published_rows(dataset: str) -> dict[str, dict[float, float]]:
    """Return the published AP by model and rate, in [0, 1]; empty for a dataset without published numbers."""
    rows = {}
    for model, percents in PUBLISHED.get(dataset, {}).items():
        rows[model] = {hz: percent / 100 for hz, percent in zip(PUBLISHED_HZ, percents, strict=True)}
    return rows
