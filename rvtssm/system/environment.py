"""Environment variables that are set for the time of one call."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore what was there afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
