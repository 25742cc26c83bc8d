"""`rvtssm serve`: a web page on which recordings and cameras play with their boxes, at a rate that the viewer sets."""

import functools
import secrets
import socket
import threading
from pathlib import Path
from urllib.parse import quote

from rvtssm.commands.announcement import announce
from rvtssm.commands.console import say
from rvtssm.commands.inputs import weights_path, with_default_weights
from rvtssm.commands.weights import say_note
from rvtssm.config import Config
from rvtssm.events.tree import find_event_files
from rvtssm.export.exported import read_weights_file
from rvtssm.models.checkpoint import LoadedCheckpoint
from rvtssm.system.extras import check_extra, is_installed
from rvtssm.system.user_error import UserError


def serve(config: Config) -> None:
    """Serve the page until Ctrl-C."""
    check_extra("serve", "web", "fastapi", "uvicorn", "websockets")
    import uvicorn

    from rvtssm.serve.server import build_app

    settings, path = config.serve, weights_path(with_default_weights(config))
    if not settings.is_local and settings.token is None:
        settings.token = secrets.token_urlsafe(12)
    recordings = _recordings(config.recording)
    reading = threading.Lock()

    @functools.cache
    def read(precision: str) -> LoadedCheckpoint:
        return read_weights_file(path, precision)

    def weights(precision: str) -> LoadedCheckpoint:
        with reading:
            return read(precision)

    checkpoint = weights("float32")
    names, layer = ", ".join(checkpoint.spec.class_names), checkpoint.temporal_config.name
    title = f"{checkpoint.model_config.size} {layer}, trained at {checkpoint.windows.hz:g} Hz: {names}"
    title += f"; {checkpoint.note}" if checkpoint.note else ""
    has_camera = is_installed("neuromorphic_drivers")
    app = build_app(settings, weights, recordings, has_camera, title)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, reuse_port=False) as listening:
        announce("serve", weights=path, recordings=len(recordings), device=checkpoint.detector.device)
        say_note(path, checkpoint)
        host, port = settings.host, listening.getsockname()[1]
        query = f"/?token={quote(settings.token, safe='')}" if settings.token else "/"
        say(f"open http://{f'[{host}]' if ':' in host else host}:{port}{query} in a browser; Ctrl-C ends it")
        options = uvicorn.Config(app, log_level="warning", ws_max_size=1 << 16, timeout_graceful_shutdown=2)
        uvicorn.Server(options).run(sockets=[listening])


def _recordings(where: str | None) -> dict[str, Path]:
    """Return the recordings that pages may play, by name: a file, or those of a folder."""
    if where is None:
        return {}
    path = Path(where)
    found = find_event_files(path) if path.is_dir() else [path]
    if not found or not all(file.is_file() for file in found):
        raise UserError(f"recording={where} is no event file and holds none; name a file or a folder, or leave it out")
    return {file.name: file for file in found}
