"""Optional packages, and parts that others add: files of users (`plugins=[FILE]`) and installed packages."""

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rvtssm.system.user_error import UserError

# Names of packages whose name differs from that of their module.
_NAMES = {
    "distributed": "dask.distributed",
    "neuromorphic_drivers": "neuromorphic-drivers",
    "rerun": "rerun-sdk",
    "hydra_plugins.hydra_joblib_launcher": "hydra-joblib-launcher",
    "hydra_plugins.hydra_submitit_launcher": "hydra-submitit-launcher",
    "hydra_plugins.hydra_optuna_sweeper": "hydra-optuna-sweeper",
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would contain it is missing
        return False


def check_extra(what: str, extra: str, *modules: str) -> None:
    """Raise UserError if an optional package is not installed. The message names it and the extra that installs it.

    Args:
        what: What needs the packages, for the message.
        extra: Name of the extra.
        modules: Modules that must be importable.
    """
    missing = [_NAMES.get(module, module) for module in modules if not is_installed(module)]
    if missing:
        packages = f"package{'s' * (len(missing) > 1)} {', '.join(missing)}"
        found = f"{what} needs the {packages}"
        raise UserError("install.extra", found=found, advice=f"run `bash scripts/install.sh {extra}` in the checkout")


def check_part(key: str, name: str, table: Collection[str]) -> None:
    """Raise UserError if a table of parts, to which plugins can add, does not have this name.

    Args:
        key: Name of the setting, for the message.
        name: The name of the part.
        table: The names of all parts.
    """
    if name not in table:
        advice = "or add your own part with plugins=[FILE]; in Python, import the file first"
        raise UserError("setting.no_such_part", name=key, found=name, needed=table, advice=advice)


def import_plugins(paths: Iterable[str]) -> None:
    """Import Python files by path. A configuration can then name the parts that they add to tables.

    A file that has been imported already is not imported again.

    Raises:
        UserError: A file does not exist, or another module has its name.
    """
    for path in paths:
        file = Path(path).resolve()
        if not file.is_file():
            raise UserError("file.missing", name=f"plugins=[{path}]", found="the file does not exist")
        if file.suffix != ".py" or not file.stem.isidentifier():
            raise UserError("file.kind", name=f"plugins=[{path}]", advice="name a Python file, such as my_part.py")
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # so that child processes find it
        # A module of the same name that was there first would hide the file.
        imported = getattr(importlib.import_module(file.stem), "__file__", None)
        if imported is None or Path(imported).resolve() != file:
            found = f"another module is named {file.stem} ({imported or 'built in'})"
            raise UserError("plugin.same_name", name=f"plugins=[{path}]", found=found)


@functools.cache
def installed_parts(group: str) -> dict[str, Any]:
    """Return what installed packages offer as entry points of a group, by name.

    A folder of `rvtssm.contrib` may have been deleted; what it offered is then left out.

    Args:
        group: Such as `rvtssm.verbs`.
    """
    parts = {}
    for entry in importlib.metadata.entry_points(group=group):
        try:
            parts[entry.name] = entry.load()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("rvtssm.contrib"):
                raise
    return parts
