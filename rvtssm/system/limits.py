"""Check values of a configuration. Messages name the key, the value and what is allowed."""

import math
from collections.abc import Collection, Iterator
from numbers import Integral, Real
from typing import Any

from rvtssm.system.user_error import UserError

LONGEST_NOTE = 60  # letters; most pictures are wide enough for this many


def check_choice(key: str, value: object, choices: Collection[object]) -> None:
    """Raise UserError if a value is not one of the choices.

    Args:
        key: Name of the value, for the message.
        value: The value.
        choices: The allowed values. The message writes None as null.
    """
    if value not in choices:
        names = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise UserError("settings.choice", f"{key}={value!r}; choose from {names}")


def check_class_map(key: str, pairs: Any) -> None:
    """Raise UserError if a value is neither None nor a dict that gives the classes of the data by those of weights.

    Args:
        key: Name of the value, for the message.
        pairs: The value.
    """
    if not isinstance(pairs, dict | None) or not all(
        isinstance(name, str) for pair in (pairs or {}).items() for name in pair
    ):
        raise UserError(
            "settings.class_map", f"{key}={pairs}; name classes of the weights and of the data, as in {{vehicle: car}}"
        )


def check_number(key: str, value: Any, lowest: float, highest: float = math.inf, is_whole: bool = False) -> None:
    """Raise UserError if a value is not a finite number within limits.

    Args:
        key: Name of the value, for the message.
        value: The value.
        lowest: The smallest allowed value.
        highest: The largest allowed value.
        is_whole: Whether the number must be an integer.
    """
    is_right_kind = _is_number(value) and (not is_whole or isinstance(value, Integral))
    if not (is_right_kind and lowest <= value <= highest and abs(value) < math.inf):
        range_ = f"at least {lowest:g}" if highest == math.inf else f"from {lowest:g} to {highest:g}"
        raise UserError(
            "settings.number", f"{key}={value!r:.100} must be a {'whole ' if is_whole else ''}number, {range_}"
        )


def check_at_least(section: str, config: object, lowest: float, *names: str) -> None:
    """Raise UserError for the first field that is too small or not finite. None is allowed.

    Args:
        section: Section of the configuration, for the message.
        config: The object with the fields.
        lowest: The smallest allowed value.
        names: The fields to check.
    """
    for key, value, or_null in _fields(section, config, names):
        if value is not None and not (_is_number(value) and lowest <= value < math.inf):
            finite = ", and finite" * (not isinstance(value, int))
            raise UserError("settings.at_least", f"{key}={value!r} must be at least {lowest:g}{finite}{or_null}")


def check_positive(section: str, config: object, *names: str) -> None:
    """Raise UserError for the first field that is not positive and finite. None is allowed.

    Args:
        section: Section of the configuration, for the message.
        config: The object with the fields.
        names: The fields to check.
    """
    for key, value, or_null in _fields(section, config, names):
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise UserError("settings.positive", f"{key}={value!r} must be positive, and finite{or_null}")


def check_counts(**values: Any) -> None:
    """Raise UserError for the first value that is not a whole number of at least 1. None is allowed."""
    for name, value in values.items():
        if value is not None:
            check_number(name, value, 1, is_whole=True)


def check_whole(section: str, config: object, *names: str) -> None:
    """Raise UserError for the first field that is not a whole number of at least 1. None is allowed.

    Args:
        section: Section of the configuration, for the message.
        config: The object with the fields.
        names: The fields to check.
    """
    check_counts(**{f"{section}.{name}": getattr(config, name) for name in names})


def check_share(section: str, config: object, *names: str) -> None:
    """Raise UserError for the first field that is not between 0 and 1.

    Args:
        section: Section of the configuration, for the message.
        config: The object with the fields.
        names: The fields to check.
    """
    for key, value, _ in _fields(section, config, names):
        if not (_is_number(value) and 0 <= value <= 1):
            raise UserError("settings.share", f"{key}={value!r} must lie between 0 and 1")


def check_note(key: str, value: object) -> None:
    """Raise UserError if a value cannot be shown as one short line in a terminal or a picture. None is allowed.

    Args:
        key: Name of the value, for the message.
        value: The value.
    """
    is_text = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())
    if value is not None and not (is_text and len(str(value)) <= LONGEST_NOTE):
        raise UserError(
            "settings.note",
            f"{key}={value!r:.100} is not one line; give 1 to {LONGEST_NOTE} printable ASCII characters",
        )


def _fields(section: str, config: object, names: Collection[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield key and value of each field, and what to say if None is allowed. Raise UserError for a text."""
    for name in names:
        key, value = f"{section}.{name}", getattr(config, name)
        if isinstance(value, str):
            raise UserError(
                "settings.number", f"{key}={value!r:.100} must be a number, got a text; write it without quotes"
            )
        yield key, value, ", or null" * (getattr(type(config), name, 0) is None)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
