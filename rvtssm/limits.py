"""Checks of the values of a configuration. Their messages name the key, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Collection


def check_choice(key: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError if the value is none of the choices. None is written as null."""
    if value not in choices:
        names = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise ValueError(f"{key}={value!r}; choose from {names}")


def check_at_least(section: str, config: object, lowest: float, *names: str) -> None:
    """Raise ValueError for the first of the fields that is below `lowest` or not finite. None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not lowest <= value < math.inf:
            finite = "" if isinstance(value, int) else ", and finite"
            raise ValueError(f"{section}.{name}={value} must be at least {lowest:g}{finite}")


def check_positive(section: str, config: object, *names: str) -> None:
    """Raise ValueError for the first of the fields that is not positive and finite. None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{section}.{name}={value} must be positive, and finite")


def check_share(section: str, config: object, *names: str) -> None:
    """Raise ValueError for the first of the fields that is not between 0 and 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{section}.{name}={value} must lie between 0 and 1")
