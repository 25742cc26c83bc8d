"""`rvtssm live FILE benchmark=true` measures the time of windows at several values of downsample."""

import json
import socket
import threading

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events
from live_examples import stream_head

from rvtssm.cli import main as cli
from rvtssm.detection.downsample import sustained_rates
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.readers import open_recording

LARGE_HW = 4 * HEIGHT, 4 * WIDTH


@pytest.fixture
def recording(tmp_path):
    """A recording of a sensor four times as large as in training, shorter than the windows that are measured."""
    events = random_events(4_000, span_us=330_000, size_hw=LARGE_HW, fills_span=True)
    path = tmp_path / "large.npz"
    with open(path, "wb") as file:
        np.savez(file, t=events.t, x=events.x, y=events.y, p=events.p, height=LARGE_HW[0], width=LARGE_HW[1])
    return path


def test_every_factor_down_to_one_is_measured_on_at_least_twenty_windows(recording, live_checkpoint):
    weights = live_checkpoint()
    opened = open_recording(recording)
    rates = list(sustained_rates(weights, opened, weights.windows, PostprocessConfig()))
    assert [rate.downsample for rate in rates] == [4, 2, 1]
    for rate in rates:
        assert rate.num_windows >= 20
        assert rate.frame_hw == (LARGE_HW[0] // rate.downsample, LARGE_HW[1] // rate.downsample)
        assert rate.smallest_object_px == rate.downsample * weights.spec.prepare_min_diagonal_px
        assert 0 < rate.p50_ms <= rate.p95_ms and rate.hz == pytest.approx(1000 / rate.p95_ms)


def test_the_verb_prints_a_table_and_writes_json(recording, weights, tmp_path, capsys):
    words = ["live", str(recording), f"checkpoint={weights}", f"out={tmp_path / 'out'}"]
    words += ["benchmark=true", "downsample=3"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    (rate,) = json.loads((tmp_path / "out" / "benchmark.json").read_text())["rates"]
    assert f"{rate['p50_ms']:.1f} ms" in printed and f"{rate['hz']:.3g} Hz" in printed
    assert cli.main([*words, "--json"]) == 0
    (rate,) = json.loads(capsys.readouterr().out)["rates"]
    assert rate["downsample"] == 3


def test_a_stream_cannot_be_measured(weights, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(stream_head(HEIGHT, WIDTH))

        sender = threading.Thread(target=send)
        sender.start()
        where = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert cli.main(["live", where, f"checkpoint={weights}", "benchmark=true"]) == 2
        sender.join()
    assert "benchmark=true needs a recording" in " ".join(capsys.readouterr().err.split())
