"""Every key of a configuration, for the tests that try each of them."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Key, type as it is written, and value of every setting, whatever section it stands in."""
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, str(field.type), value
