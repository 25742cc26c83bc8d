"""Settings of single parts, such as a layer or a head: a dataclass of the part, filled from a dict of the user."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rvtssm.system.user_error import UserError

Options = TypeVar("Options")


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
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
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
