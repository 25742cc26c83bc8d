"""The fixtures of tests/live_examples.py."""

from live_examples import draw_events, live_checkpoint  # noqa: F401
