"""What does not fit in memory is refused before it is tried."""

import os
import platform
from pathlib import Path

import numpy as np
import pytest
from user_errors import raises

from rvtssm.cli.main import compose
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.records import WindowSettings
from rvtssm.system.machine import check_memory, return_freed_memory
from rvtssm.training.checks import check


def test_only_what_is_free_is_given():
    check_memory(1 << 20, "little")
    with raises("memory.too_little"):
        check_memory(10**18, "1 exabyte")


def test_a_hundred_million_bins_are_refused_at_once():
    with raises("memory.too_little"):
        FrameCounter(WindowSettings(num_bins=100_000_000), frame_pixels(240, 304, 1))
    with raises("memory.too_little"):
        check(compose(["windows.num_bins=100000000", "model=base"]))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library of Linux is the one that keeps memory")
def test_freed_memory_goes_back_to_the_system():
    blocks = [np.ones(1 << 13) for _ in range(2_000)]  # 128 MiB in parts that are too small to be mapped
    filled = resident_bytes()
    del blocks[:-1]
    return_freed_memory()
    assert resident_bytes() < filled - (100 << 20)
