"""Whoever runs a command for the first time is told why it waits."""

from __future__ import annotations

import logging

import numba
import pytest
from numba.core import event

from rvtssm.events.jit import Compilations


@pytest.fixture
def compilations():
    listener = Compilations()
    event.register("numba:compile", listener)
    yield listener
    event.unregister("numba:compile", listener)


def test_compiling_is_logged_once_and_counted(compilations, caplog, monkeypatch):
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    inner = numba.njit(lambda x: x + 1)
    outer = numba.njit(lambda x: 2 * inner(x))
    with caplog.at_level(logging.INFO, "rvtssm.events.jit"):
        assert (outer(1), outer(2), outer(1.5)) == (4, 6, 5)
        (say_total,) = (function for function in at_exit if function == compilations.log_total)
        say_total()
    ours = [record.getMessage() for record in caplog.records]
    assert ours[0] == "compiling loops for this machine; this happens once"
    assert ours[-1].startswith(f"compiled {compilations.num_functions} loops in ")
    assert compilations.num_functions == 4 and compilations.seconds > 0
