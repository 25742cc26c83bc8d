"""Every key of the configuration with its meaning, which is the docstring below its field in the source."""

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its full name, its default as it is written on the command line, and what it means."""

    name: str
    default: str
    meaning: str


def keys_of(settings: Any, prefix: str = "") -> Iterator[Key]:
    """Yield all keys of a dataclass, whose values are the defaults, and of those within it; `prefix` stands before."""
    kinds: Any = [kind for kind in reversed(type(settings).__mro__) if is_dataclass(kind)]
    meanings = {name: meaning for kind in kinds for name, meaning in _meanings(kind).items()}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from keys_of(value, f"{prefix}{field.name}.")
        else:
            yield Key(prefix + field.name, as_written(value), meanings[field.name])


def purpose(settings: Any) -> str:
    """Return the first sentence of the docstring of a dataclass on one line."""
    paragraph = (inspect.getdoc(type(settings)) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).split(". ")[0].rstrip(".")


def as_written(value: Any) -> str:
    """Return a value in the form that the command line takes."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(as_written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value) or "''"


@functools.cache
def _meanings(settings: type) -> dict[str, str]:
    """Return the docstring below every field of a class on one line.

    A constant of the same file that a docstring names is replaced by its values.
    """
    (body,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(body, ast.ClassDef)
    named = functools.partial(_values, sys.modules[settings.__module__])
    meanings = {}
    for field, below in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split()).rstrip(".")
            meanings[ast.unparse(field.target)] = re.sub(r"\b[A-Z_]{3,}\b", named, text)
    return meanings


def _values(module: ModuleType, name: re.Match[str]) -> str:
    constant = getattr(module, name[0], None)
    return ", ".join(constant) if isinstance(constant, (tuple, dict)) else name[0]
