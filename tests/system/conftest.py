"""The fixtures of tests/live_examples.py."""

from live_examples import live_checkpoint  # noqa: F401
