"""Limits of values. A field of a dataclass of settings states its own, and one function checks them all."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, TypeVar

from rvtssm.system.user_error import UserError

LONGEST_NOTE = 60  # letters; most pictures are wide enough for this many
_LONGEST_SHOWN = 100  # letters of a wrong value
Default = TypeVar("Default")
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a value may be. Of a list, each element keeps them."""

    choices: Collection[object] = ()  # of texts and null; empty: any text
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    is_distinct: bool = False  # no element of the list occurs twice
    is_filled: bool = False  # the list has an element
    is_path: bool = False  # a file or folder, or a list of them
    or_null: bool = False  # None is allowed, as it always is if it is the default

    @property
    def in_words(self) -> str:
        """The range of numbers, such as ", at least 1"; nothing without bounds."""
        bounds = (
            ("at least", self.at_least),
            ("more than", self.above),
            ("at most", self.at_most),
            ("less than", self.below),
        )
        words = [f"{name} {bound:g}" for name, bound in bounds if math.isfinite(bound)]
        return f", {' and '.join(words)}" if words else ""

    def hold(self, number: Any) -> bool:
        """Return whether a number is finite and within the bounds."""
        is_above = number >= self.at_least and number > self.above
        is_below = number <= self.at_most and number < self.below
        return math.isfinite(number) and is_above and is_below


_NONE = Limits()


def setting(default: Default, **limits: Any) -> Default:
    """Return the field of a setting with its default and its limits.

    >>> steps: int = setting(400_000, at_least=1)

    Args:
        default: The default; if it is None, None is always allowed.
        limits: The fields of `Limits`.
    """
    metadata = {"limits": Limits(**limits)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)  # type: ignore[no-any-return, call-overload]


def limits_of(one: Field[Any]) -> Limits:
    """Return the limits of a field."""
    return one.metadata.get("limits", _NONE)


def field_names(record: Any) -> list[str]:
    """Return the names of the fields of a dataclass, or of one of its records, in order."""
    return [one.name for one in fields(record)]


def values_of(record: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return fields or properties of a record by their names."""
    return {name: getattr(record, name) for name in names}


class Settings:
    """Base of dataclasses of settings: checks the limits of their fields, and keeps which values the caller has named.

    A field that holds a list also takes one element of it.
    """

    section = ""  # the name before their keys
    named: dict[str, Any]  # the values that the caller has given, by field

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section or cls.section

    def __new__(cls, *args: Any, **values: Any) -> Settings:
        made = super().__new__(cls)
        object.__setattr__(made, "named", {**dict(zip(field_names(cls), args, strict=False)), **values})
        return made

    def over(self, others: Any) -> Any:
        """Return other settings of the same kind, with the values that the caller of these has named.

        A dict keeps the other values that it does not name.
        """
        named = dict(self.named)
        for name, value in named.items():
            if isinstance(value, dict):
                named[name] = getattr(others, name) | value
        return replace(others, **named)

    def __post_init__(self) -> None:
        self.check_limits()

    def check_limits(self) -> None:
        """Raise UserError for the first field that is outside of its limits, and make lists of lone elements."""
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            kind = str(one.type)
            is_list = kind.startswith(("list[", "tuple["))
            if is_list and value is not None:
                # A lone element is a list of one.
                listed = value if isinstance(value, list | tuple) else [value]
                value = tuple(listed) if kind.startswith("tuple[") else list(listed)
                object.__setattr__(self, one.name, value)
            limits = limits_of(one)
            may_be_null = one.default is None or limits.or_null
            if value is None and may_be_null:
                continue
            is_whole = "int" in kind and "float" not in kind
            is_number = is_whole or "float" in kind
            or_null = ", or null" if may_be_null else ""
            name = f"{self.section}.{one.name}" if self.section else one.name
            check_value(name, value, limits, is_number, is_whole, or_null)


def check_value(
    name: str, value: Any, limits: Limits, is_number: bool = False, is_whole: bool = False, or_null: str = ""
) -> None:
    """Raise UserError if a value is outside of its limits.

    Args:
        name: Name of the value, for the message.
        value: The value, or a list of them.
        limits: What it may be.
        is_number: Whether it has to be a number, unless it is one of the choices.
        is_whole: Whether the number has to be whole.
        or_null: Ends the message if None is allowed.
    """
    if isinstance(value, list | tuple):
        if limits.is_filled and not value:
            raise UserError("setting.form", name=name, found="[]", needed=f"name at least one{or_null}")
        if limits.is_distinct and len({*map(_as_key, value)}) < len(value):
            raise UserError("setting.form", name=name, found=shown(value), needed="name each element once")
        for element in value:
            check_value(name, element, limits, is_number, is_whole, or_null)
        return
    # A name among numbers, such as auto, is one of the choices.
    if limits.choices and not (is_number and _is_number(value)):
        check_choice(name, value, limits.choices)
        return
    if not is_number:
        return
    number = "whole number" if is_whole else "number"
    if isinstance(value, str):
        needed = f"give a {number}{limits.in_words}{or_null}, without quotes"
        raise UserError("setting.form", name=name, found=shown(repr(value)), needed=needed)
    is_right_kind = _is_number(value) and (not is_whole or isinstance(value, Integral))
    if not (is_right_kind and limits.hold(value)):
        needed = f"give a {number}{limits.in_words}{or_null}"
        raise UserError("setting.out_of_range", name=name, found=shown(value), needed=needed)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise UserError if a value is not one of the choices.

    Args:
        name: Name of the value, for the message.
        value: The value.
        choices: The allowed values. The message writes None as null.
    """
    if value not in choices:
        raise UserError("setting.choice", name=name, found=shown(value), needed=list(choices))


def check_number(name: str, value: Any, lowest: float, highest: float = math.inf, is_whole: bool = False) -> None:
    """Raise UserError if a value is not a finite number within limits.

    Args:
        name: Name of the value, for the message.
        value: The value.
        lowest: The smallest allowed value.
        highest: The largest allowed value.
        is_whole: Whether the number must be an integer.
    """
    if isinstance(value, list | tuple):
        raise UserError("setting.form", name=name, found=shown(value), needed="give one number")
    check_value(name, value, Limits(at_least=lowest, at_most=highest), is_number=True, is_whole=is_whole)


def check_counts(**values: Any) -> None:
    """Raise UserError for the first value that is not a whole number of at least 1. None is allowed."""
    for name, value in values.items():
        if value is not None:
            check_number(name, value, 1, is_whole=True)


def check_class_map(name: str, pairs: Any) -> None:
    """Raise UserError if a value is neither None nor a dict that gives the classes of the data by those of weights.

    Args:
        name: Name of the value, for the message.
        pairs: The value.
    """
    names = [*pairs, *pairs.values()] if isinstance(pairs, dict) else []
    if pairs is not None and not (isinstance(pairs, dict) and all(isinstance(each, str) for each in names)):
        needed = "name classes of the weights and of the data, as in {vehicle: car}"
        raise UserError("setting.form", name=name, found=shown(pairs), needed=needed)


def check_note(name: str, value: object) -> None:
    """Raise UserError if a value cannot be shown as one short line in a terminal or a picture. None is allowed.

    Args:
        name: Name of the value, for the message.
        value: The value.
    """
    is_text = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())
    if value is not None and not (is_text and len(str(value)) <= LONGEST_NOTE):
        needed = f"give one line of 1 to {LONGEST_NOTE} printable ASCII characters"
        raise UserError("setting.form", name=name, found=shown(value), needed=needed)


@dataclass(frozen=True)
class NoOptions:
    """The settings of a part that has none of its own."""


def checked_options(key: str, given: Mapping[str, Any], kind: type[Options]) -> Options:
    """Return the settings of a part, with its defaults for those that are not given.

    Args:
        key: Name of the dict, for messages.
        given: Values by name.
        kind: The dataclass of the part; its constructor may check the values.

    Raises:
        UserError: The part has no setting of a name, or a value is of another type than its default.
    """
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in known:
            needed = list(known) or "this part has no settings of its own"
            raise UserError("setting.unknown", name=f"{key}.{name}", found=value, needed=needed)
        usual = known[name].default
        allowed = (int, float) if isinstance(usual, float) else (type(usual),)
        # `True` is an int for Python, but no number for a user; a default of None says nothing about the type.
        is_fitting = isinstance(value, allowed) and isinstance(value, bool) == isinstance(usual, bool)
        if not is_fitting and usual is not None:
            raise UserError(
                "setting.form", name=f"{key}.{name}", found=value, needed=f"a value such as the default, {usual}"
            )
    return kind(**given)


def _as_key(element: Any) -> str:
    """Return an element as text; numbers that differ less than a report shows are equal."""
    return f"{element:g}" if _is_number(element) else str(element)


def shown(value: Any) -> str:
    """Return a wrong value as it is written in settings, cut if it is long."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        value = list(value)
    text = value if isinstance(value, str) and value else repr(value)
    return text[:_LONGEST_SHOWN]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
