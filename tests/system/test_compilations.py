"""Whoever runs a command or calls the package for the first time is told why it waits."""

import sys

import numba
import pytest
from numba.core import event

from rvtssm.system.jit import Compilations


@pytest.fixture
def compilations():
    listener = Compilations()
    event.register("numba:compile", listener)
    yield listener
    event.unregister("numba:compile", listener)


def ours(function):
    function.__module__ = "rvtssm.example"
    return numba.njit(function)


def test_a_person_at_a_terminal_is_told_once(compilations, capsys, monkeypatch):
    numba.njit(lambda x: x + 3)(1)  # not ours
    assert not compilations.is_told
    ours(lambda x: x + 1)(1)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    compilations.is_told = False
    for number in (1, 1.5):
        ours(lambda x: x + 2)(number)
    line = "rvtssm: compiling loops for this machine; this happens once, and takes seconds"
    assert capsys.readouterr().err.splitlines().count(line) == 1
