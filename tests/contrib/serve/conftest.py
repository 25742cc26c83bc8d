"""The fixtures of tests/live_examples.py, two recordings that pages can play, and a server that they connect to."""

import socket
import threading

import pytest
import uvicorn
from live_examples import draw_events, live_checkpoint  # noqa: F401

from rvtssm.contrib.serve.serve_config import ServeConfig
from rvtssm.contrib.serve.server import build_app
from rvtssm.readers.dat import write_dat

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
    from rvtssm.models.detector import set_precision

    set_precision(found["bf16"].detector, "bf16")
    return found.__getitem__


@pytest.fixture(scope="module")
def address(weights, recordings):
    """A server in this process."""
    note = "trained on simulation only"
    app = build_app(ServeConfig(max_upload_mb=1), weights, recordings, lambda: False, "small s5", note)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join()
