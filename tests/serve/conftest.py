"""The fixtures of tests/live_examples.py, and two recordings that pages can play."""

import pytest
from live_examples import draw_events, live_checkpoint  # noqa: F401

from rvtssm.events.readers.dat import write_dat

HEIGHT, WIDTH = 48, 64


@pytest.fixture(scope="session")
def recordings(tmp_path_factory, draw_events):  # noqa: F811
    """Two recordings of 3 s by name."""
    folder = tmp_path_factory.mktemp("recordings")
    found = {}
    for seed, name in enumerate(("one_td.dat", "two_td.dat")):
        found[name] = folder / name
        write_dat(found[name], draw_events(20_000, 1_000_000, 3_000_000, seed), HEIGHT, WIDTH)
    return found


@pytest.fixture(scope="session")
def weights(live_checkpoint):  # noqa: F811
    """A function: precision -> small weights, always the same ones."""
    found = {"float32": live_checkpoint(), "bf16": live_checkpoint()}
    from rvtssm.models.low_precision import set_precision

    set_precision(found["bf16"].detector, "bf16")
    return found.__getitem__
