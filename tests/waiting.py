"""Waiting in a test for what another thread or process does, on a machine that may be busy."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "what was waited for did not happen"
        time.sleep(0.005)
