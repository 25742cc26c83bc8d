"""Loss and lag of live detection by the way that events come, the size of packets and the load of the machine.

    python -m benchmarks.live_packets [--seconds 5] [--events 200000] [--loops 0 2 4] [--json FILE]

A process of its own sends noise on 304 x 240 pixels at its own pace, through a pipe, a TCP connection or a queue of
messages; for `rvtssm.live` and `push`, a thread does. `--loops` says how many other programs compute meanwhile. "lost"
are events that were sent and never counted, the lag is that of the boxes behind their events.
"""

import argparse
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rvtssm
from benchmarks.measuring import write_json
from benchmarks.scan import machine
from rvtssm.contrib.ros.message_source import MessageSource
from rvtssm.detection.feed import Feed, PythonSource
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.packets import MAGIC, piped_events
from rvtssm.readers.gate import join_events
from rvtssm.records import Events, ReadOptions

HEIGHT, WIDTH = 240, 304
WAYS = ("pipe", "tcp", "live", "push", "node")
_MESSAGES = "event_camera_msgs/msg/EventPacket"
_BUSY = "while True: pass"


@dataclass(frozen=True)
class Measured:
    """One run."""

    way: str
    packet_ms: int
    loops: int
    lost: float  # share of the events
    p50_ms: float
    p99_ms: float
    windows: int
    passed: int


def packets(packet_ms: int, seconds: float, rate: int) -> Iterator[Events]:
    """Yield packets of noise, each when its time has come."""
    rng, count = np.random.default_rng(0), rate * packet_ms // 1000
    began_s = time.monotonic()
    for number in range(round(1000 * seconds / packet_ms)):
        t = np.sort(rng.integers(1000 * packet_ms * number, 1000 * packet_ms * (number + 1), count))
        x, y = rng.integers(0, [[WIDTH], [HEIGHT]], (2, count)).astype(np.uint16)
        events = Events(t, x, y, rng.integers(0, 2, count).astype(np.uint8))
        time.sleep(max(began_s + packet_ms * (number + 1) / 1000 - time.monotonic(), 0))
        yield events


def as_bytes(events: Events) -> bytes:
    """Return a packet as `rvtssm.detection.packets` describes it."""
    columns = (events.t.astype("<i8"), events.x.astype("<u2"), events.y.astype("<u2"), events.p)
    return struct.pack("<Iq", len(events), -1) + b"".join(column.tobytes() for column in columns)


def as_message(events: Events) -> bytes:
    """Return a packet as a serialised event_camera_msgs/EventPacket (CDR) with the encoding mono."""
    words = (events.p.astype(np.uint64) << 63) | (events.y.astype(np.uint64) << 48) | (events.x.astype(np.uint64) << 32)
    words |= (1000 * (events.t - events.t[0])).astype(np.uint64)
    head = struct.pack("<IIIBxxxIIQQ", 0, 0, 1, 0, HEIGHT, WIDTH, 0, 1000 * int(events.t[0]))
    encoding = struct.pack("<I5sBxxI", 5, b"mono", 0, words.nbytes)
    return b"\0\1\0\0" + head + encoding + words.tobytes()


def send(way: str, packet_ms: int, seconds: float, rate: int, port: int) -> None:
    """Send all packets on standard output or to a port: what the other process does."""
    if way == "tcp":
        out = socket.create_connection(("127.0.0.1", port)).makefile("wb", buffering=0)
    else:
        out = os.fdopen(1, "wb", buffering=0)
    out.write(MAGIC + struct.pack("<II", HEIGHT, WIDTH))
    for events in packets(packet_ms, seconds, rate):
        out.write(as_bytes(events))


@contextmanager
def sent_by_a_process(way: str, packet_ms: int, seconds: float, rate: int) -> Iterator[Feed]:
    """Yield what reads the packets of another process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = [
            sys.executable,
            "-m",
            "benchmarks.live_packets",
            "--send",
            way,
            *map(str, (packet_ms, seconds, rate, port)),
        ]
        with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as sender:
            assert sender.stdout is not None
            read = sender.stdout.read
            if way == "tcp":
                connection, _ = server.accept()
                read = connection.recv
            yield Feed(piped_events(read, way, ReadOptions()))


@contextmanager
def sent_by_a_thread(way: str, packet_ms: int, seconds: float, rate: int) -> Iterator[Feed]:
    """Yield what reads the packets of a thread of this process: a generator, or the messages of a node."""
    if way == "node":
        source = MessageSource(_MESSAGES, 1 << 27, print)

        def put() -> None:
            for events in packets(packet_ms, seconds, rate):
                source.put(as_message(events))
            time.sleep(1.0)
            source.end()

        threading.Thread(target=put, daemon=True).start()
        source.wait_for_camera()
        yield Feed(source)
        return
    waiting: queue.Queue[Events | None] = queue.Queue()

    def put_packets() -> None:
        for events in packets(packet_ms, seconds, rate):
            waiting.put(events)
        waiting.put(None)

    threading.Thread(target=put_packets, daemon=True).start()
    yield Feed(PythonSource(iter(waiting.get, None), HEIGHT, WIDTH))


def measure(weights: rvtssm.Predictor, way: str, packet_ms: int, loops: int, seconds: float, rate: int) -> Measured:
    """Return loss and lag of one way."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(loops)]
    try:
        stream = weights.stream(HEIGHT, WIDTH, latest=True)
        stream.warm_up()
        if way == "push":
            return _pushed(stream, packet_ms, loops, seconds, rate)
        opened = sent_by_a_process if way in ("pipe", "tcp") else sent_by_a_thread
        counted, lags, windows, passed = 0, list[float](), 0, 0

        def count(events: Events) -> None:
            nonlocal counted
            counted += len(events)

        with opened(way, packet_ms, seconds, rate) as feed:
            run = LiveRun(feed, stream, count)
            feed.begin()
            while not feed.is_ended:
                result = run.step()
                if result is not None:
                    lags.append(1000 * result.lag_s)
                    windows += 1
                    passed += result.num_passed
        return _measured(way, packet_ms, loops, counted, seconds, rate, lags, windows, passed)
    finally:
        for program in busy:
            program.kill()
            program.wait()


def _pushed(stream: rvtssm.StreamDetector, packet_ms: int, loops: int, seconds: float, rate: int) -> Measured:
    """Push what has arrived: a thread receives packets, and the program joins those that wait."""
    waiting: queue.SimpleQueue[tuple[Events, float] | None] = queue.SimpleQueue()

    def receive() -> None:
        for events in packets(packet_ms, seconds, rate):
            waiting.put((events, time.monotonic()))
        waiting.put(None)

    threading.Thread(target=receive, daemon=True).start()
    counted, lags, passed = 0, list[float](), 0
    is_ended = False
    while not is_ended:
        arrived = [waiting.get()]
        while not waiting.empty():
            arrived.append(waiting.get())
        is_ended = arrived[-1] is None
        packets_now = [packet for packet in arrived if packet is not None]
        if not packets_now:
            break
        events = join_events([packet for packet, _ in packets_now])
        counted += len(events)
        for window in stream.push(events):
            lags.append(1000 * (time.monotonic() - packets_now[-1][1]))
            passed += window.num_passed
    return _measured("push", packet_ms, loops, counted, seconds, rate, lags, len(lags), passed)


def _measured(
    way: str,
    packet_ms: int,
    loops: int,
    counted: int,
    seconds: float,
    rate: int,
    lags: list[float],
    windows: int,
    passed: int,
) -> Measured:
    num_sent = round(1000 * seconds / packet_ms) * (rate * packet_ms // 1000)
    p50_ms, p99_ms = np.percentile(lags or [np.nan], (50, 99)).tolist()
    return Measured(way, packet_ms, loops, 1 - counted / num_sent, p50_ms, p99_ms, windows, passed)


def main() -> None:
    """Measure all ways and print a table."""
    if sys.argv[1:2] == ["--send"]:
        way, packet_ms, seconds, rate, port = sys.argv[2:]
        send(way, int(packet_ms), float(seconds), int(rate), int(port))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--events", type=int, default=200_000, help="events per second")
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    weights, found = rvtssm.load("street-tiny"), list[Measured]()
    print("way  packets  busy loops  lost     lag p50  p99      windows  passed over")
    for way in options.ways:
        for packet_ms in (1, 10):
            for loops in options.loops:
                one = measure(weights, way, packet_ms, loops, options.seconds, options.events)
                found.append(one)
                print(
                    f"{way:4} {packet_ms:3} ms   {loops:6}      {100 * one.lost:5.1f} % {one.p50_ms:6.0f} ms"
                    f" {one.p99_ms:6.0f} ms {one.windows:6} {one.passed:8}",
                    flush=True,
                )
    if options.json:
        write_json(options.json, {**machine("cpu"), "load": os.getloadavg()[0], "runs": [vars(one) for one in found]})


if __name__ == "__main__":
    main()
