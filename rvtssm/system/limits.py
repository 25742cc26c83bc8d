"""Checks of the values of a configuration. Their messages name the key, the value and what is allowed."""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from rvtssm.system.user_error import UserError

LONGEST_NOTE = 60  # letters, which most pictures are wide enough for


def check_choice(key: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError if the value is none of the choices. None is written as null."""
    if value not in choices:
        names = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise UserError(f"{key}={value!r}; choose from {names}")


def check_number(key: str, value: Any, lowest: float, highest: float = math.inf, is_whole: bool = False) -> None:
    """Raise ValueError if the value is not a finite number, or whole number, from `lowest` to `highest`."""
    is_right_kind = _is_number(value) and (not is_whole or isinstance(value, Integral))
    if not (is_right_kind and lowest <= value <= highest and abs(value) < math.inf):
        range_ = f"at least {lowest:g}" if highest == math.inf else f"from {lowest:g} to {highest:g}"
        raise UserError(f"{key}={value!r:.100} must be a {'whole ' if is_whole else ''}number, {range_}")


def check_at_least(section: str, config: object, lowest: float, *names: str) -> None:
    """Raise ValueError for the first of the fields that is below `lowest` or not finite. None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and lowest <= value < math.inf):
            finite = "" if isinstance(value, int) else ", and finite"
            raise UserError(f"{section}.{name}={value!r} must be at least {lowest:g}{finite}{_or_null(config, name)}")


def check_positive(section: str, config: object, *names: str) -> None:
    """Raise ValueError for the first of the fields that is not positive and finite. None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise UserError(f"{section}.{name}={value!r} must be positive, and finite{_or_null(config, name)}")


def check_share(section: str, config: object, *names: str) -> None:
    """Raise ValueError for the first of the fields that is not between 0 and 1."""
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and 0 <= value <= 1):
            raise UserError(f"{section}.{name}={value!r} must lie between 0 and 1")


def check_note(key: str, value: object) -> None:
    """Raise ValueError if a terminal or a picture cannot show the value as one short line. None is allowed."""
    is_text = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())
    if value is not None and not (is_text and len(str(value)) <= LONGEST_NOTE):
        raise UserError(f"{key}={value!r:.100} is not one line; give 1 to {LONGEST_NOTE} printable letters of ASCII")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _or_null(config: object, name: str) -> str:
    return ", or null" if getattr(type(config), name, 0) is None else ""
