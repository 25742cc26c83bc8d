"""Python files of users that add parts to the tables of the package, named by `plugins=[FILE]`."""

import importlib
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from rvtssm.system.user_error import UserError


def check_part(key: str, name: str, table: Collection[str]) -> None:
    """Raise UserError if a table of parts has no such name, which a plugin could have added."""
    if name not in table:
        raise UserError(f"{key}={name!r}; choose from {', '.join(table)}, or name the file of a part: plugins=[FILE]")


def import_plugins(paths: Iterable[str]) -> None:
    """Import Python files by their path: what they add to the tables of parts can then be named in a configuration.

    A file that is imported already is not imported again. ValueError if there is none, or its name is taken.
    """
    for path in paths:
        file = Path(path).resolve()
        if not file.is_file():
            raise UserError(f"plugins=[{path}]: there is no such file")
        if file.suffix != ".py" or not file.stem.isidentifier():
            raise UserError(f"plugins=[{path}]: name a Python file, such as my_part.py")
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # so that processes that are started from this one find it
        found = getattr(importlib.import_module(file.stem), "__file__", None)
        if found is None or Path(found).resolve() != file:
            raise UserError(
                f"plugins=[{path}]: {file.stem} is the name of another module ({found or 'of Python'}); rename the file"
            )
