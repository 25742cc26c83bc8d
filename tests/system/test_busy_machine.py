import os

import pytest

from rvtssm.system.busy_machine import busy_machine_remedy, hz_to_set


@pytest.mark.parametrize(
    ("threads", "processor_s", "load", "policy", "helps"),
    [
        (4, 40.0, 0.0, "", False),  # every thread had its processor
        (4, 10.0, 0.0, "", True),  # each thread got a quarter of the time
        (4, 40.0, 1e6, "", True),  # more programs than processors
        (1, 1.0, 1e6, "", False),  # one thread waits for no other
        (4, 10.0, 1e6, "passive", False),  # it is set already
    ],
)
def test_the_remedy_is_told_if_threads_wait_for_processors_that_others_use(
    monkeypatch, threads, processor_s, load, policy, helps
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    assert ("OMP_NUM_THREADS=1" in busy_machine_remedy(threads, 10.0, processor_s)) == helps


@pytest.mark.parametrize(
    ("sustained_hz", "hz"), [(0.44, "0.41"), (5, "4.7"), (10, "9.5"), (15, "14"), (20, "19"), (230, "210")]
)
def test_a_rate_a_little_below_the_sustained_one_is_recommended(sustained_hz, hz):
    assert hz_to_set(sustained_hz) == hz
