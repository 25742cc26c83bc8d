"""Verbs whose work a test replaces."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from live_examples import live_checkpoint  # noqa: F401

from rvtssm.cli.verbs import verbs

Work = Callable[[Any], Any]


@pytest.fixture
def does(monkeypatch) -> Callable[[str, Work], None]:
    """A function: a verb and what it does instead of its work. It begins without the values that it needs."""

    def replace_work(verb: str, work: Work) -> None:
        module = ModuleType("work_of_a_test")
        vars(module)["work"] = work
        monkeypatch.setitem(sys.modules, module.__name__, module)
        writes = tuple(key for key in verbs()[verb].writes if key == "out")
        changed = replace(verbs()[verb], work=f"{module.__name__}:work", check="", writes=writes)
        monkeypatch.setitem(verbs(), verb, changed)

    return replace_work
