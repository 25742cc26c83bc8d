# %% [markdown]
# # A live loop
#
# Boxes from a camera whose own SDK calls a function with packets of events. `FakeCamera` stands for such an SDK: like
# most, it calls back from a thread of its own. Replace it with yours and keep the rest.

# %%
import queue
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

import rvtssm

HEIGHT, WIDTH = 240, 304


class FakeCamera:
    """Sends noise: 100 packets of 10 ms."""

    def start(self, on_events: Callable[[np.ndarray], None], on_stop: Callable[[], None]) -> None:
        threading.Thread(target=self._send, args=(on_events, on_stop), daemon=True).start()

    def _send(self, on_events: Callable[[np.ndarray], None], on_stop: Callable[[], None]) -> None:
        rng = np.random.default_rng(0)
        for number in range(100):
            packet = np.zeros(500, [("x", "u2"), ("y", "u2"), ("p", "u1"), ("t", "i8")])
            packet["t"] = np.sort(rng.integers(10_000 * number, 10_000 * (number + 1), 500))  # microseconds
            packet["x"], packet["y"] = rng.integers(WIDTH, size=500), rng.integers(HEIGHT, size=500)
            packet["p"] = rng.integers(2, size=500)
            on_events(packet)
            time.sleep(0.01)
        on_stop()


# %% [markdown]
# `rvtssm.live` takes any iterator of packets. The callback puts packets into a queue, and a generator takes them out.


# %%
def packets(camera: FakeCamera) -> Iterator[np.ndarray]:
    """Yield what the camera sends."""
    waiting: queue.Queue[np.ndarray | None] = queue.Queue()
    camera.start(waiting.put, lambda: waiting.put(None))
    while (packet := waiting.get()) is not None:
        yield packet


for window in rvtssm.live(packets(FakeCamera()), height=HEIGHT, width=WIDTH, hz=20):
    print(f"{window.t_us / 1e6:.3f} s, {1000 * window.lag_s:.0f} ms after its events: {window.names or 'nothing'}")
