"""Fixtures of `live_examples` for all tests in this folder."""

from live_examples import draw_events, exported, live_checkpoint, weights  # noqa: F401
