"""Boxes from a camera whose own SDK calls a function with packets of events.

    python examples/live_from_sdk.py

`FakeCamera` stands for such an SDK: it calls back from a thread of its own, as most do. Replace it by yours; the rest
stays. `rvtssm.live` takes any iterator of packets: the callback puts them into a queue, and a generator takes them out.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

import rvtssm

HEIGHT, WIDTH = 240, 304


class FakeCamera:
    """Sends noise: 20 packets of 10 ms."""

    def start(self, on_events: Callable[[np.ndarray], None], on_stop: Callable[[], None]) -> None:
        def send() -> None:
            rng = np.random.default_rng(0)
            for number in range(20):
                packet = np.zeros(500, [("x", "u2"), ("y", "u2"), ("p", "u1"), ("t", "i8")])
                packet["t"] = np.sort(rng.integers(10_000 * number, 10_000 * (number + 1), 500))  # microseconds
                packet["x"], packet["y"] = rng.integers(WIDTH, size=500), rng.integers(HEIGHT, size=500)
                packet["p"] = rng.integers(2, size=500)
                on_events(packet)
                time.sleep(0.01)
            on_stop()

        threading.Thread(target=send, daemon=True).start()


def packets(camera: FakeCamera) -> Iterator[np.ndarray]:
    """Yield what the camera sends."""
    waiting: queue.Queue[np.ndarray | None] = queue.Queue()
    camera.start(waiting.put, lambda: waiting.put(None))
    while (packet := waiting.get()) is not None:
        yield packet


def main() -> None:
    for window in rvtssm.live(packets(FakeCamera()), height=HEIGHT, width=WIDTH, hz=20):
        print(f"{window.t_us / 1e6:.3f} s, lag {1000 * window.lag_s:.0f} ms: {window.names or 'nothing'}")  # noqa: T201


if __name__ == "__main__":
    main()
