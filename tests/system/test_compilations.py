"""Whoever runs a command or calls the package for the first time is told why it waits."""

import logging
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
    monkeypatch.setattr("atexit.register", lambda function: None)
    numba.njit(lambda x: x + 3)(1)  # not ours
    assert compilations.num_functions == 0
    ours(lambda x: x + 1)(1)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    compilations.__init__()
    for number in (1, 1.5):
        ours(lambda x: x + 2)(number)
    line = "rvtssm: compiling loops for this machine; this happens once"
    assert capsys.readouterr().err.splitlines().count(line) == 1


def test_compiling_is_logged_once_and_counted(compilations, caplog, monkeypatch):
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    inner = ours(lambda x: x + 1)
    outer = ours(lambda x: 2 * inner(x))
    with caplog.at_level(logging.INFO, "rvtssm.system.jit"):
        assert (outer(1), outer(2), outer(1.5)) == (4, 6, 5)
        (say_total,) = (function for function in at_exit if function == compilations.say_total)
        say_total()
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "compiling loops for this machine; this happens once"
    assert told[-1].startswith(f"compiled {compilations.num_functions} loops in ")
    assert compilations.num_functions == 4 and compilations.seconds > 0
