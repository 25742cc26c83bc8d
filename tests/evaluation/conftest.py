"""The fixtures of tests/live_examples.py, and evaluations without what takes longest."""

import pytest
from live_examples import draw_events, live_checkpoint  # noqa: F401

from rvtssm.evaluation import evaluating, pages


@pytest.fixture(scope="module")
def without_pictures():
    """Reports without plots, pictures and page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "to_html", lambda *_: "")
        patch.setattr(evaluating, "worst_pictures", lambda *_: [])
        yield
