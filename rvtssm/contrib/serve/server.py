"""The server of the page: its files, the list of recordings, uploads, and one connection and session per page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect

from rvtssm.contrib.serve.serve_config import LOOPBACK, ServeConfig
from rvtssm.contrib.serve.session import Opening, Session, sensor_side
from rvtssm.contrib.serve.uploads import Uploads
from rvtssm.drawing.draw import class_colors
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.system.machine import return_freed_memory
from rvtssm.system.user_error import UserError

_STATIC = Path(__file__).parent / "static"
_MOST_COMMANDS_BYTES = 4096  # the longest message that a page may send
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def build_app(
    config: ServeConfig,
    weights: Callable[[str], LoadedCheckpoint],
    recordings: dict[str, Path],
    has_camera: Callable[[], bool],
    title: str,
    note: str = "",
) -> FastAPI:
    """Build the web application.

    Args:
        config: Settings of the server.
        weights: Returns the weights in a given precision.
        recordings: The recordings that a page may play, by name. Pages cannot reach any other file.
        has_camera: Returns whether a camera is connected; called for every page that opens.
        title: Describes the weights.
        note: What viewers should know about the weights.
    """
    server = _Server(config, weights, recordings, has_camera, title, note)
    app = FastAPI(lifespan=server.lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Guard, config=config)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.get("/")(server.page)
    app.post("/upload/{page_id}")(server.upload)
    app.websocket("/session")(server.connect)
    return app


class _Server:
    """What answers requests. The arguments are those of `build_app`."""

    def __init__(
        self,
        config: ServeConfig,
        weights: Callable[[str], LoadedCheckpoint],
        recordings: dict[str, Path],
        has_camera: Callable[[], bool],
        title: str,
        note: str,
    ) -> None:
        self.config = config
        self.weights = weights
        self.recordings = recordings
        self.has_camera = has_camera
        self.title = title
        self.note = note
        self.uploads = Uploads(int(config.max_upload_mb * 1e6))
        self.camera = threading.Lock()
        self.pages = dict[str, Session]()
        self.sending: dict[str, asyncio.Task[Opening]] = {}  # by page: uploads that are arriving or being checked
        self.num_arriving = 0  # connections whose session is being created

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Close all sessions when the server ends."""
        yield
        for session in list(self.pages.values()):
            await asyncio.to_thread(session.close)
        self.uploads.close()

    async def page(self) -> FileResponse:
        """Return the page."""
        return FileResponse(_STATIC / "index.html", headers=_HEADERS)

    async def upload(self, page_id: str, request: Request) -> JSONResponse:
        """Take in a recording, and let the page play it."""
        session = self.pages.get(page_id)
        if session is None:
            return JSONResponse({"message": "this page is not connected; reload it"}, 404)
        if page_id in self.sending:
            return JSONResponse({"message": "this page is already sending a file; wait until it has arrived"}, 409)
        try:
            size = [sensor_side(request.query_params.get(name)) for name in ("height", "width")]
            name = unquote(request.headers.get("x-file-name", ""))
            arriving = self.uploads.receive(page_id, name, request.stream(), *size)
            self.sending[page_id] = asyncio.create_task(arriving)
            opening = await self.sending[page_id]
        except (ValueError, OSError, ClientDisconnect) as error:
            return JSONResponse({"message": getattr(error, "strerror", None) or str(error)}, 400)
        except asyncio.CancelledError:
            if page_id in self.pages:  # the server is stopping
                raise
            return JSONResponse({"message": "this page was closed"}, 404)
        finally:
            self.sending.pop(page_id, None)
        session.handle(opening)
        return JSONResponse({"name": opening.name})

    async def connect(self, socket: WebSocket) -> None:
        """Run the session of a page until it is closed."""
        await socket.accept()
        most = self.config.max_pages
        if len(self.pages) + self.num_arriving >= most:
            message = f"serve.max_pages={most} allows no further page; close one, or restart with a larger value"
            await socket.send_text(json.dumps({"kind": "error", "message": message}))
            await socket.close(1013)
            return
        loop = asyncio.get_running_loop()
        is_ready = asyncio.Event()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(is_ready.set)

        page_id = secrets.token_urlsafe(16)
        self.num_arriving += 1
        try:
            checkpoint = await asyncio.to_thread(self.weights, "float32")
            is_camera_there = await asyncio.to_thread(self.has_camera)
            session = self.pages[page_id] = Session(self.weights, self.camera, notify, self.config)
        finally:
            self.num_arriving -= 1
        # One task sends, this one receives, until the page closes.
        sender = asyncio.create_task(_send(socket, session, is_ready))
        try:
            await socket.send_text(json.dumps(self._hello(page_id, session, checkpoint, is_camera_there)))
            while True:
                self._obey(session, _parsed(await socket.receive_text()), is_camera_there)
        except (WebSocketDisconnect, ValueError, RuntimeError, KeyError):  # KeyError: a message of bytes
            pass
        finally:
            sender.cancel()
            del self.pages[page_id]
            if page_id in self.sending:
                self.sending[page_id].cancel()
            threading.Thread(target=_end, args=(session, self.uploads, page_id)).start()

    def _hello(
        self, page_id: str, session: Session, checkpoint: LoadedCheckpoint, is_camera_there: bool
    ) -> dict[str, Any]:
        """Return the first message to a page."""
        return {
            "kind": "hello",
            "page": page_id,
            "title": self.title,
            "note": self.note,
            "class_names": checkpoint.spec.class_names,
            "class_colors": class_colors(checkpoint.spec.class_names),
            "trained_hz": checkpoint.windows.hz,
            "rates": session.rates,
            "hz": session.hz,
            "window": session.window or ("shrink" if checkpoint.may_shrink_windows else "slide"),
            "sources": [*self.recordings] + ["camera"] * is_camera_there,
        }

    def _obey(self, session: Session, command: dict[str, Any], is_camera_there: bool) -> None:
        """Hand a command of a page to its session, and open only what the page may play."""
        name = command.get("open")
        if name == "camera" and is_camera_there:
            session.handle(Opening("camera", camera_settings=self.config.camera_settings))
        elif isinstance(name, str) and name in self.recordings:
            size = command.get("height"), command.get("width")
            session.handle(Opening(name, str(self.recordings[name]), *size))
        session.handle(command)


async def _send(socket: WebSocket, session: Session, is_ready: asyncio.Event) -> None:
    """Send everything the session has, one item after another. Meanwhile no new picture is made."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await is_ready.wait()
            is_ready.clear()
            for part in session.taken():
                if isinstance(part, bytes):
                    await socket.send_bytes(part)
                else:
                    await socket.send_text(part)


def _end(session: Session, uploads: Uploads, page_id: str) -> None:
    """Close a session and delete its file. This runs in a thread, because the session may be computing."""
    try:
        session.close()
    finally:
        uploads.delete(page_id)
    return_freed_memory()


def _parsed(text: str) -> dict[str, Any]:
    """Return a command of a page. Raise UserError, which ends the connection, if it is not a command."""
    if len(text) > _MOST_COMMANDS_BYTES:
        raise UserError("serve.page", found="the page sent a message that is too long", advice="reload it")
    command = json.loads(text)
    if not isinstance(command, dict):
        raise UserError("serve.page", found="the page sent no command", advice="reload it")
    return command


class _Guard:
    """Refuses requests from other sites, requests under another host name, and requests without the token."""

    def __init__(self, app: Any, config: ServeConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        reason = self._reason(scope) if scope["type"] in ("http", "websocket") else ""
        if not reason:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            await PlainTextResponse(reason, 403)(scope, receive, send)

    def _reason(self, scope: Any) -> str:
        """Return why a request is refused; empty if it is allowed."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        origin = headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
            site = urlsplit(origin or "").netloc
        except ValueError:  # an IPv6 address without its end
            return "the host or the origin of the request is no address"
        if self.config.is_local and name not in LOOPBACK:
            return f"this server only serves this machine, not {host}"
        if origin is not None and site != host:
            return f"pages of {origin} may not use this server"
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        needs_token = self.config.token is not None and not scope["path"].startswith("/static/")
        if needs_token and not secrets.compare_digest(given.encode(), (self.config.token or "").encode()):
            return "the token is missing or wrong; use the address that the server printed"
        return ""
