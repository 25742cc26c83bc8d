"""What is set for the threads of PyTorch, and that a setting of the user stays."""

import os
import sys

import pytest

from rvtssm.system.machine import share_processors


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
@pytest.mark.parametrize("num_processors", [1, 2, 16])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch, given, num_processors):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: num_processors)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    share_processors()
    assert "OMP_NUM_THREADS" not in os.environ
    share_processors(may_use_one=True)
    assert os.environ.get("OMP_WAIT_POLICY") == (given.get("OMP_WAIT_POLICY") if given else "PASSIVE")
    assert os.environ.pop("OMP_NUM_THREADS", None) == ("1" if num_processors <= 2 else None)
    os.environ.pop("OMP_WAIT_POLICY", None)


def test_it_is_too_late_once_torch_is_there(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", object())
    share_processors(may_use_one=True)
    assert "OMP_WAIT_POLICY" not in os.environ
