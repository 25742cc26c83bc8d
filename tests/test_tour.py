"""Every file and every name on the page docs/tour.md exists."""

import importlib
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tour.md").read_text()


def names() -> list[str]:
    """The dotted names that begin with the package."""
    return sorted(set(re.findall(r"`(rvtssm(?:\.\w+)+)`", PAGE)))


def exists(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute, None)
        return found is not None
    return False


def test_the_names_of_the_tour_exist():
    assert [name for name in names() if not exists(name)] == []


def test_the_files_of_the_tour_exist():
    paths = re.findall(r"`((?:rvtssm|tests)/[\w/]+(?:\.py)?)/?`", PAGE)
    assert len(names()) > 25 and len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
