"""The server of the page, without a browser: playing, settings, uploads, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import zlib
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from fake_camera import FakeDevice, packets_of
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.contrib.serve import uploads
from rvtssm.contrib.serve.serve import _recordings
from rvtssm.contrib.serve.serve_config import ServeConfig
from rvtssm.contrib.serve.server import build_app
from rvtssm.contrib.serve.session import Opening, Session
from rvtssm.detection.live_run import LiveRun
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.index import index_path
from rvtssm.records import Events
from rvtssm.system.files import cache_folder
from tests.contrib.ros.bag_writer import DVS, message_of, typestore_of, write_bag, write_events
from tests.waiting import wait_until

HEIGHT, WIDTH = 48, 64
LOCAL, SESSION = "http://127.0.0.1:8000", "ws://127.0.0.1:8000/session"


def picture_of(data: bytes) -> tuple[dict, np.ndarray]:
    """The header of a picture, and its darker and brighter events (2, height, width)."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    pixels = np.frombuffer(zlib.decompress(data[4 + length :]), np.uint8)
    return header, np.stack([pixels >> 4, pixels & 15]).reshape(2, header["height"], header["width"])


class Page:
    """What a page would see of a session."""

    def __init__(self, weights, path=None, camera=None, config=None) -> None:
        self.ready = threading.Event()
        self.session = Session(weights, camera or threading.Lock(), self.ready.set, config)
        self.messages: list[dict] = []
        self.pictures: list[tuple[dict, np.ndarray]] = []
        if path is not None:
            self.play(path)

    def play(self, path) -> None:
        self.session.handle(Opening(path.name, str(path)))

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.close()

    def until(self, is_done, seconds=600.0):
        """Take what the session sends until a condition on this page holds."""
        until_s = time.monotonic() + seconds
        while not is_done(self):
            assert time.monotonic() < until_s, (self.messages, len(self.pictures))
            self.ready.wait(0.2)
            self.ready.clear()
            for part in self.session.taken():
                if isinstance(part, bytes):
                    self.pictures.append(picture_of(part))
                else:
                    self.messages.append(json.loads(part))

    def results(self, since=0):
        return [result for header, _ in self.pictures[since:] for result in header["results"]]


def test_a_page_sees_events_boxes_and_delays(weights, recordings):
    path = recordings["one_td.dat"]
    with Page(weights, path) as page:
        page.session.handle({"speed": 0.2})  # so that it does not begin again where the first window takes seconds
        page.until(lambda page: len(page.results()) >= 8 and len(page.pictures) > 8)
    assert page.messages == [
        {
            **{"kind": "opened", "name": "one_td.dat", "duration_s": pytest.approx(3, abs=0.01)},
            **{"height": HEIGHT, "width": WIDTH, "downsample": 1, "assumed": ""},
        }
    ]
    header, counts = page.pictures[-1]
    now_us = 1_000_000 + round(1e6 * header["t_s"])
    events = open_recording(path).between(now_us - 39_999, now_us)
    wanted = np.zeros((2, HEIGHT, WIDTH), int)
    np.add.at(wanted, (events.p, events.y, events.x), 1)
    np.testing.assert_array_equal(counts, np.minimum(wanted, 15))
    assert (header["hz"], header["step_scale"], header["pixel"]) == (20, 1, 1)
    assert all(step >= 0 and lag >= 0 for _, step, lag, _ in page.results())
    ends_s = np.array([end for end, *_ in page.results()])
    passed = np.array([passed for *_, passed in page.results()])
    np.testing.assert_allclose(np.diff(ends_s), 0.05 * (passed[1:] + 1), atol=1e-5)
    assert any(header["boxes"] for header, _ in page.pictures)


def test_a_page_that_never_reads_has_one_picture_waiting(weights, recordings):
    with Page(weights, recordings["one_td.dat"]) as page:
        page.session.handle({"speed": 0.2})
        page.until(lambda page: page.results())
        run = page.session._run
        now_us = run.source.now_us
        wait_until(lambda: run.source.now_us > now_us + 200_000)  # it plays on, though nobody takes the pictures
        waiting = page.session.taken()
        assert sum(isinstance(part, bytes) for part in waiting) == 1 and len(waiting) < 10
        page.until(lambda page: len(page.results()) > 3)  # and the page goes on when it reads again


def test_the_rate_changes_while_it_plays(weights, recordings):
    """The slider moves from 20 to 200 Hz: windows end ten times as often, the state goes on."""
    with Page(weights, recordings["one_td.dat"]) as page:
        page.session.handle({"speed": 0.2})  # so that it does not begin again where the machine is busy
        page.until(lambda page: len(page.results()) >= 3)
        page.session.handle({"hz": 200, "speed": 0.1})
        page.until(lambda page: page.pictures[-1][0]["hz"] == 200)
        start = len(page.pictures)
        page.until(lambda page: len(page.results(start)) > 6)
        run = page.session._run
        assert run.num_restarts == 0 and not run.detector._network.is_first
        found = page.results(start)
        for (before, *_), (after, _, _, passed) in pairwise(found):
            assert after - before == pytest.approx(0.005 * (passed + 1), abs=1e-5)
        assert page.pictures[-1][0]["step_scale"] == 0.1
        page.session.handle({"window": "slide"})
        page.until(lambda page: run.detector.windows.length_us == 50_000)
        page.session.handle({"precision": "bf16"})
        page.until(lambda page: run.detector._network.streams.detector is weights("bf16").detector)
        assert not run.detector._network.is_first and run.detector.windows.length_us == 50_000
        assert run.detector.on_events == page.session._shown.add  # the page goes on to show events
        page.session.handle({"hz": -(10**400)})  # which no float can hold
        page.until(lambda page: run.detector.windows.hz == page.session.rates[0])
        assert [message["kind"] for message in page.messages] == ["opened"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"hz": float("nan")}, "nan instead of a number"),
        ({"window": "open"}, "'open'; choose from slide, shrink"),
        ({"seek": None}, "instead of a number"),
    ],
)
def test_a_wrong_setting_is_told_and_playing_goes_on(weights, recordings, command, message):
    with Page(weights, recordings["one_td.dat"]) as page:
        page.until(lambda page: page.pictures)
        page.session.handle(command)
        page.until(lambda page: len(page.messages) == 2)
        assert message in page.messages[1]["message"] and page.messages[1]["is_playing"]
        start = len(page.pictures)
        page.until(lambda page: len(page.pictures) > start + 2)


def test_a_recording_can_be_paused_sought_and_begins_again(weights, recordings):
    with Page(weights, recordings["one_td.dat"]) as page:
        page.session.handle({"paused": True, "speed": 4})
        page.session.handle({"seek": 0.97})
        page.until(lambda page: page.messages)
        page.session.handle({"paused": False})
        page.until(lambda page: page.pictures and page.pictures[-1][0]["t_s"] > 2.9)
        page.until(lambda page: page.pictures[-1][0]["t_s"] < 1)
        run = page.session._run
        page.until(lambda page: run.num_restarts == 1)  # at the end
        page.session.handle({"paused": True})
        page.until(lambda page: page.pictures[-1][0]["is_paused"])
        at_us, num_pictures = run.now_us, len(page.pictures)
        page.until(lambda page: len(page.pictures) > num_pictures + 2)
        assert run.now_us == at_us


def test_a_recording_that_is_gone_is_told_without_its_folder(weights, recordings, tmp_path):
    with Page(weights) as page:
        page.play(tmp_path / "gone.dat")
        page.until(lambda page: page.messages)
        message = "gone.dat does not exist; give an event recording"
        assert page.messages[0] == {"kind": "error", "message": message, "is_playing": False}
        page.play(recordings["one_td.dat"])
        page.until(lambda page: page.pictures)


def written(path, draw_events, num_events, duration_us):
    write_dat(path, draw_events(num_events, 1_000_000, duration_us, 0), HEIGHT, WIDTH)
    return path


def test_a_recording_shorter_than_a_window_shows_its_events_boxes_and_why(weights, draw_events, tmp_path):
    path = written(tmp_path / "short_td.dat", draw_events, 2_000, 20_000)
    with Page(weights, path) as page:
        page.until(lambda page: page.results() and page.pictures[-1][0]["boxes"])
        header, counts = page.pictures[-1]
        assert counts.sum() > 1_000 and header["t_s"] < 0.021
        assert header["notice"].startswith("the recording is shorter than a window")
        page.session.handle({"hz": 200})
        page.until(lambda page: page.pictures[-1][0]["hz"] == 200 and not page.pictures[-1][0]["notice"])
        page.until(lambda page: page.pictures[-1][0]["t_s"] < header["t_s"])  # it begins again


def test_the_last_window_is_computed_though_the_recording_ends_in_it(weights, recordings):
    with Page(weights, recordings["one_td.dat"]) as page:
        page.session.handle({"seek": 0.98})
        page.until(lambda page: any(end > 4.0 for end, *_ in page.results()))
        at_end = [counts.sum() for header, counts in page.pictures if header["t_s"] > 2.99]
        page.until(lambda page: page.pictures[-1][0]["t_s"] < 1)
        assert at_end and min(at_end) > 0


def test_a_place_without_events_is_said(weights, draw_events, tmp_path):
    parts = [draw_events(2_000, *span, 0) for span in ((1_000_000, 100_000), (1_600_000, 100_000))]
    path = tmp_path / "gap_td.dat"
    write_dat(
        path, Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in "txyp")), HEIGHT, WIDTH
    )
    with Page(weights, path) as page:
        page.until(lambda page: page.pictures and page.pictures[-1][0]["t_s"] > 0.65)
    for header, counts in page.pictures:
        assert header["notice"] == ("" if counts.any() else "no events in 40 ms")
    assert {header["notice"] == "" for header, _ in page.pictures} == {True, False}


def test_a_paused_page_shows_the_place_that_it_goes_to_and_another_recording_plays(weights, recordings):
    path = recordings["one_td.dat"]
    with Page(weights, path) as page:
        page.session.handle({"paused": True})
        for share in (0.5, 0.0):
            page.session.handle({"seek": share})
            at_s = pytest.approx(3 * share, abs=0.01)
            page.until(lambda page, at_s=at_s: page.pictures and page.pictures[-1][0]["t_s"] == at_s)
            start = len(page.pictures)
            page.until(lambda page, start=start: len(page.pictures) > start + 2)
            header, counts = page.pictures[-1]
            assert header["t_s"] == pytest.approx(3 * share, abs=0.01) and header["is_paused"] and not header["notice"]
            assert 200 < counts.sum() < 400  # 267 events in 40 ms
        page.play(recordings["two_td.dat"])
        page.until(lambda page: len(page.messages) == 2 and page.results())
        assert not page.pictures[-1][0]["is_paused"]


def test_a_page_begins_with_the_settings_of_the_command(weights, recordings):
    config = ServeConfig(hz=250, window="slide", downsample=2)
    with Page(weights, recordings["one_td.dat"], config=config) as page:
        page.until(lambda page: page.pictures)
        detector = page.session._run.detector
        assert (detector.windows.hz, detector.windows.length_us, detector.downsample) == (250, 50_000, 2)
        page.session.handle({"hz": 1e9})
        page.until(lambda page: page.pictures[-1][0]["hz"] == 250)
        assert page.messages[0]["downsample"] == 2
    with client_of(weights, recordings, hz=250, window="slide") as client, client.websocket_connect(SESSION) as socket:
        hello = json.loads(socket.receive_text())
        assert (hello["hz"], hello["window"], hello["rates"]) == (250, "slide", [5, 250])


def test_a_page_that_sends_too_fast_is_refused(weights, monkeypatch):
    is_busy = threading.Event()
    monkeypatch.setattr(Session, "_set", lambda self, command: is_busy.wait(20))
    with Page(weights) as page:
        with raises("serve.page"):
            for _ in range(300):
                page.session.handle({"hz": 20})
        is_busy.set()


@pytest.mark.parametrize("bug", [TypeError, AttributeError, AssertionError, StopIteration])
def test_a_bug_is_told_and_the_page_plays_on(weights, recordings, monkeypatch, capfd, bug):
    """Whatever an action raises, the thread of the page lives and the page hears of it."""

    def broken(run):
        raise bug("not so")

    path = recordings["one_td.dat"]
    with Page(weights, path) as page:
        page.until(lambda page: page.pictures)
        with monkeypatch.context() as patch:
            patch.setattr(LiveRun, "step", broken)
            page.until(lambda page: page.messages[-1]["kind"] == "error")
        assert f"{bug.__name__}: not so" in page.messages[-1]["message"] and not page.messages[-1]["is_playing"]
        assert "Traceback" in capfd.readouterr().err
        num_pictures = len(page.pictures)
        page.play(path)
        page.until(lambda page: len(page.pictures) > num_pictures)


def test_two_pages_are_independent(weights, recordings):
    with Page(weights, recordings["one_td.dat"]) as first, Page(weights, recordings["two_td.dat"]) as second:
        second.session.handle({"hz": 50})
        for page, hz in ((first, 20), (second, 50)):
            page.until(lambda page, hz=hz: page.pictures and page.pictures[-1][0]["hz"] == hz)
            page.until(lambda page: len(page.results()) > 2)
        assert first.messages[0]["name"] == "one_td.dat" and second.messages[0]["name"] == "two_td.dat"
        assert first.session._run.detector is not second.session._run.detector


def test_one_page_has_the_camera(weights, draw_events, monkeypatch):
    drivers = pytest.importorskip("neuromorphic_drivers")
    devices, pulled = [], threading.Event()
    events = draw_events(60_000, duration_us=60_000_000)  # more than a busy machine needs for the first results

    def opened(**_):
        devices.append(FakeDevice(packets_of(events, began_s=time.time()), HEIGHT, WIDTH))
        devices[-1].clock = time.time
        return devices[-1]

    monkeypatch.setattr(drivers, "open", opened)
    monkeypatch.setattr(FakeDevice, "__next__", real_time(FakeDevice.__next__, pulled))
    camera = threading.Lock()
    with Page(weights, camera=camera) as first, Page(weights, camera=camera) as second:
        first.session.handle(Opening("camera"))
        first.until(lambda page: page.messages)
        second.session.handle(Opening("camera"))
        second.until(lambda page: page.messages)
        assert "another page uses the camera" in second.messages[0]["message"]
        first.until(lambda page: page.results())
        pulled.set()
        first.until(lambda page: len(page.messages) == 2)
        assert first.messages[0]["duration_s"] is None
        assert "broke off (pulled)" in first.messages[1]["message"]
        assert not devices[0].is_open and not camera.locked()


def real_time(following, pulled):
    """A fake device waits as long as it says, and fails when it is pulled."""

    def wait(self):
        if pulled.is_set():
            raise OSError("pulled")
        if not self._ring and self._coming:
            time.sleep(min(max(self._coming[0].arrives_s - time.time(), 0), self._timeout_s))
            self._receive()
            if not self._ring:
                return type("Status", (), {"ring": None})(), None
        return following(self)

    return wait


# connections


def client_of(weights, recordings, has_camera=False, **settings):
    app = build_app(ServeConfig(**settings), weights, recordings, lambda: has_camera, "small", "of a test")
    return TestClient(app, base_url=LOCAL)


def next_of(socket, kind):
    """The next message of a kind; pictures are passed over."""
    while True:
        message = socket.receive()
        if message.get("text") and (told := json.loads(message["text"]))["kind"] == kind:
            return told


def test_a_page_connects_and_plays(weights, recordings):
    with client_of(weights, recordings) as client, client.websocket_connect(SESSION) as socket:
        hello = json.loads(socket.receive_text())
        assert (hello["class_names"], hello["trained_hz"], hello["rates"]) == (["car", "pedestrian"], 20, [5, 200])
        assert (hello["title"], hello["note"], hello["hz"], hello["window"]) == ("small", "of a test", 20, "slide")
        assert hello["sources"] == ["one_td.dat", "two_td.dat"]
        socket.send_text(json.dumps({"open": "/etc/passwd"}))
        socket.send_text(json.dumps({"open": "two_td.dat"}))
        assert next_of(socket, "opened")["name"] == "two_td.dat"
        assert picture_of(socket.receive_bytes())[0]["kind"] == "picture"


def test_a_recording_that_does_not_say_its_size_is_assumed_to_be_usual_until_the_page_gives_it(weights, tmp_path):
    path = tmp_path / "unsaid.csv"
    path.write_text("".join(f"{1_000 * i},{i % 60},{i % 40},{i % 2}\n" for i in range(300)))
    with client_of(weights, {path.name: path}) as client, client.websocket_connect(SESSION) as socket:
        socket.send_text(json.dumps({"open": path.name, "height": "", "width": ""}))
        told = next_of(socket, "opened")
        assert (told["height"], told["width"]) == (180, 240) and "assuming 240 x 180 pixels; Size" in told["assumed"]
        socket.send_text(json.dumps({"open": path.name, "height": "48", "width": "64"}))
        told = next_of(socket, "opened")
        assert (told["height"], told["width"], told["assumed"]) == (48, 64, "")
        socket.send_text(json.dumps({"open": path.name, "height": "20000", "width": "64"}))
        assert next_of(socket, "error")["message"] == "20000 is not a sensor size; give a number of pixels"


def test_the_page_and_its_files_are_there_and_ask_nobody_else(weights, recordings):
    client = client_of(weights, recordings)
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'self'" in page.headers["content-security-policy"]
    files = [part.split('"')[0] for part in page.text.replace("src=", "href=").split('href="')[1:]]
    assert {"static/style.css", "static/page.js", "static/icon.svg"} <= set(files)
    for text in [page.text] + [client.get(f"/{file}").text for file in set(files)]:
        assert not re.search("(?:https?|wss?):?//", text.replace("http://www.w3.org/2000/svg", ""))
    assert client.get("/docs").status_code == 404


@pytest.mark.parametrize("sent", ["[]", "no json", '"' + "x" * 5_000 + '"', b"bytes"])
def test_a_page_that_sends_nonsense_is_disconnected(weights, recordings, sent):
    with client_of(weights, recordings) as client:
        with client.websocket_connect(SESSION) as socket:
            socket.receive_text()
            socket.send({"type": "websocket.receive", "bytes" if isinstance(sent, bytes) else "text": sent})
        with client.websocket_connect(SESSION) as socket:
            assert json.loads(socket.receive_text())["kind"] == "hello"


def test_the_number_of_pages_is_bounded(weights, recordings):
    with client_of(weights, recordings, max_pages=1) as client, client.websocket_connect(SESSION) as first:
        first.receive_text()
        with client.websocket_connect(SESSION) as second:
            assert "serve.max_pages=1 allows no further page; close one" in json.loads(second.receive_text())["message"]


@pytest.mark.parametrize(
    ("settings", "path", "headers", "status"),
    [
        ({}, "/", {}, 200),
        ({}, "/", {"host": "localhost:8000"}, 200),
        ({}, "/", {"host": "[::1]:8000"}, 200),
        ({}, "/", {"host": "evil.example"}, 403),  # a name that was made to lead here
        ({}, "/", {"host": "[::1"}, 403),
        ({}, "/", {"origin": "http://["}, 403),
        ({}, "/", {"origin": "http://evil.example"}, 403),
        ({}, "/upload/x", {"origin": "http://127.0.0.1:8000"}, 404),
        ({"token": "abc"}, "/", {}, 403),
        ({"token": "abc"}, "/?token=abcd", {}, 403),
        ({"token": "abc"}, "/?token=abc", {}, 200),
        ({"token": "abc"}, "/static/page.js", {}, 200),
        ({"token": "abc", "host": "0.0.0.0"}, "/?token=abc", {"host": "robot.local"}, 200),
    ],
)
def test_who_is_let_in(weights, recordings, settings, path, headers, status):
    client = client_of(weights, recordings, **settings)
    call = client.post if path.startswith("/upload") else client.get
    assert call(path, headers=headers).status_code == status


def test_a_connection_of_another_site_is_refused(weights, recordings):
    with client_of(weights, recordings, token="abc") as client:
        for path, headers in ((f"{SESSION}?token=abc", {"origin": "http://evil.example"}), (SESSION, {})):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(path, headers=headers):
                pass
        with client.websocket_connect(f"{SESSION}?token=abc", headers={"origin": LOCAL}) as socket:
            assert json.loads(socket.receive_text())["kind"] == "hello"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_camera_is_offered_where_there_is_one(weights, recordings, is_there):
    with client_of(weights, recordings, is_there) as client, client.websocket_connect(SESSION) as socket:
        assert ("camera" in json.loads(socket.receive_text())["sources"]) == is_there


def test_recordings_of_a_folder_are_files_bags_and_their_topics(draw_events, tmp_path):
    pytest.importorskip("rosbags")
    events = draw_events(2_000, 0, 100_000, 0)
    written(tmp_path / "a_td.dat", draw_events, 10, 1_000)
    write_events(tmp_path / "bag", events, "db3", size_hw=(HEIGHT, WIDTH))
    store = typestore_of("ros1")
    messages = [(1, message_of(store, DVS, events, "", (HEIGHT, WIDTH)))]
    write_bag(tmp_path / "two.bag", {"/left": messages, "/right": messages}, store, "ros1")
    (tmp_path / "broken.mcap").write_bytes(b"no bag")
    (tmp_path / "note.txt").touch()
    (tmp_path / "link_td.dat").symlink_to(tmp_path / "a_td.dat")
    found = _recordings(str(tmp_path))
    assert sorted(found) == ["a_td.dat", "bag", "broken.mcap", "link_td.dat", "two.bag:/left", "two.bag:/right"]
    for name in ("bag", "two.bag:/right"):
        with closing(open_recording(found[name])) as recording:
            assert recording.num_events == len(events)
    assert list(_recordings(str(found["two.bag:/left"]))) == ["two.bag"]


# uploads


def stored():
    return [path for path in (cache_folder() / "uploads").rglob("*") if path.is_file()]


def test_uploads_are_checked_played_and_deleted(weights, recordings, monkeypatch):
    content = recordings["one_td.dat"].read_bytes()
    killed = cache_folder() / "uploads" / "999999999" / "page"
    killed.mkdir(parents=True)
    (killed / "upload.raw").write_bytes(b"of a server that was killed")
    index = index_path(killed / "upload.raw")
    index.parent.mkdir(parents=True, exist_ok=True)
    index.touch()
    with client_of(weights, {}, max_upload_mb=1) as client:
        assert stored() == []
        with client.websocket_connect(SESSION) as socket:
            page = json.loads(socket.receive_text())["page"]

            def upload(content, name="drive_td.dat", query=""):
                answer = client.post(f"/upload/{page}{query}", content=content, headers={"X-File-Name": name})
                return answer.status_code, answer.json().get("message", answer.json().get("name"))

            status, message = upload(b"\x89HDF\r\n\x1a\n" + bytes(300), "br%20oken.h5")
            assert status == 400 and message.startswith("br oken.h5") and "/" not in message
            assert upload(bytes(1_000_001))[1].startswith("drive_td.dat: it is larger than 1 MB")
            assert upload(content, query="?width=wide")[1] == "wide is not a sensor size; give a number of pixels"
            assert stored() == []

            async def whole(*_) -> None:
                """The check of a whole file takes seconds; the tests in a browser have it."""

            monkeypatch.setattr(uploads, "_check", whole)
            assert upload(content) == (200, "drive_td.dat")
            assert next_of(socket, "opened")["name"] == "drive_td.dat" and len(stored()) == 1
            played = stored()
            assert upload(bytes(1_000_001))[0] == 400 and stored() == played  # it can still be read
            assert upload(content, "next_td.dat") == (200, "next_td.dat")
            assert len(stored()) == 1 and stored() != played
        assert client.post("/upload/other", content=content).status_code == 404
        wait_until(lambda: not stored())
    assert not killed.exists() and not index.exists()


def opened_uploads():
    """The files of uploads that this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [link for link in links if "/uploads/" in link]


def test_an_upload_ends_with_its_page(address):
    client = pytest.importorskip("websockets.sync.client")
    where = urlsplit(address)
    with client.connect(f"ws://{where.netloc}/session") as page:
        name = json.loads(page.recv())["page"]
        sending = socket.create_connection((where.hostname, where.port))
        head = f"POST /upload/{name} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 9000\r\n\r\n"
        sending.sendall(head.encode() + b"the rest never comes")
        wait_until(opened_uploads)
    with sending:
        wait_until(lambda: not opened_uploads() and not stored())
        assert b" 404 " in sending.recv(100)


def test_an_upload_that_stalls_does_not_block_its_page(monkeypatch):
    async def stalled():
        yield b"begun"
        await asyncio.sleep(60)

    async def complete():
        yield b"whole"

    async def whole(*_) -> None:
        pass

    monkeypatch.setattr(uploads, "_SILENCE_S", 0.1)
    monkeypatch.setattr(uploads, "_check", whole)
    files = uploads.Uploads(100)
    with raises("serve.upload"):
        asyncio.run(files.receive("page", "a.dat", stalled(), None, None))
    assert stored() == []
    assert asyncio.run(files.receive("page", "a.dat", complete(), None, None)).name == "a.dat"
    files.close()


# the command


@pytest.fixture
def weights_file(weights, tmp_path) -> Path:
    """A file with small weights."""
    checkpoint = weights("float32")
    write_checkpoint(tmp_path / "best.ckpt", checkpoint.detector, checkpoint)
    return tmp_path / "best.ckpt"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_printed_address_is_that_of_the_server(weights_file, monkeypatch, capsys, host):
    asked = []

    def run(self, sockets):
        asked.append(sockets[0].getsockname())

    monkeypatch.setattr("uvicorn.Config", lambda *_, **__: None)  # it closes what other packages log to
    monkeypatch.setattr("uvicorn.Server.run", run)
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    words = ["serve", f"checkpoint={weights_file}", f"host='{host}'", "port=0", "token='a+b&c#d'"]
    assert cli.main([*words, "hz=100", "window=slide", "downsample=2"]) == 0
    (address,) = asked
    assert address[0] == host
    shown = f"[{host}]" if ":" in host else host
    assert f"open http://{shown}:{address[1]}/?token=a%2Bb%26c%23d in a browser" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_port_in_use_is_one_line_that_names_another(weights_file, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", f"checkpoint={weights_file}", f"port={port}"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"port {port}: it is in use" in said and f"port={port + 1}, or port=0" in said


def test_the_command_says_what_is_missing(tmp_path, monkeypatch, refused):
    (tmp_path / "notes.txt").write_text("no events\n")
    for words, message in (
        (["checkpoint=a.ckpt", str(tmp_path / "notes.txt")], "it is text, but its lines are not events"),
        (["checkpoint=a.ckpt", f"recording={tmp_path}"], "holds no recording (.dat, .raw, .h5, .hdf5, "),
        (["checkpoint=a.ckpt", f"recording={tmp_path}/a.raw"], "a.raw: it is no file and no folder; name a file"),
    ):
        assert message in refused("serve", *words)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "bash scripts/install.sh web" in refused("serve", "checkpoint=a.ckpt")
