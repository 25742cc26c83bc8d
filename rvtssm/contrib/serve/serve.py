"""`rvtssm serve`: a web page on which recordings and cameras play with their boxes, at a rate that the viewer sets."""

import contextlib
import errno
import functools
import os
import secrets
import socket
import threading
from pathlib import Path
from urllib.parse import quote

from rvtssm.cli.chosen_weights import say_note
from rvtssm.cli.console import announce, say
from rvtssm.cli.inputs import weights_path, with_default_weights
from rvtssm.contrib.serve.serve_config import ServeSettings
from rvtssm.datasets.custom import options_above
from rvtssm.detection.event_camera import connected_cameras
from rvtssm.detection.sources import DSEC_EVENTS, find_sources
from rvtssm.export.exported import read_weights_file
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers import open_with, parts_of, split_part
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.records import ReadOptions
from rvtssm.system.extras import check_extra
from rvtssm.system.remote import is_url
from rvtssm.system.user_error import UserError


def serve(config: ServeSettings) -> None:
    """Serve the page until Ctrl-C."""
    check_extra("serve", "web", "fastapi", "uvicorn", "websockets")
    import uvicorn

    from rvtssm.contrib.serve.server import build_app

    settings = config.serve
    path = weights_path(with_default_weights(config))
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
    names = ", ".join(checkpoint.spec.class_names)
    layer = checkpoint.temporal_config.name
    title = f"{checkpoint.model_config.preset} {layer}, trained at {checkpoint.windows.hz:g} Hz: {names}"
    app = build_app(settings, weights, recordings, lambda: bool(connected_cameras()), title, checkpoint.note or "")
    with _listening(settings.host, settings.port) as listening:
        announce("serve", weights=path, recordings=len(recordings), device=checkpoint.detector.device)
        say_note(path, checkpoint)
        host = settings.host
        port = listening.getsockname()[1]
        query = f"/?token={quote(settings.token, safe='')}" if settings.token else "/"
        say(f"open http://{f'[{host}]' if ':' in host else host}:{port}{query} in a browser; Ctrl-C ends it")
        options = uvicorn.Config(app, log_level="warning", ws_max_size=1 << 16, timeout_graceful_shutdown=2)
        uvicorn.Server(options).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise UserError, which names another port, if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, reuse_port=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        found = "it is in use, perhaps by another `rvtssm serve`"
        advice = f"choose another, as in port={1 + port % 65535}, or port=0 for any free one"
        raise UserError("source.in_use", name=f"port {port}", found=found, advice=advice) from None


def _recordings(where: str | None) -> dict[str, Path]:
    """Return the recordings that pages may play, by name: a file, or those of a folder, with all parts of each."""
    if where is None:
        return {}
    if not is_url(where) and not split_part(where)[0].exists():
        advice = "name a file or a folder, or leave it out"
        raise UserError("file.missing", name=where, found="it is no file and no folder", advice=advice)
    found: dict[str, Path] = {}
    for path in find_sources(where).values():
        name = os.path.basename(os.path.abspath(split_part(path)[0]))  # of a link, not of what it leads to
        if (events := Path(path, DSEC_EVENTS)).is_file():
            found[name] = events
        elif len(parts := _parts(Path(path))) > 1:
            found |= {f"{name}:{part}": Path(f"{path}:{part}") for part in parts}
        else:
            if path == where:  # a file that cannot be read is told now; those of a folder are told by their pages
                with contextlib.suppress(UnknownSensorSize):
                    open_with(path, options_above(path, ReadOptions())).close()
            found[name] = Path(path)
    return found


def _parts(path: Path) -> list[str]:
    """Return the parts of a recording, such as topics; none also if its opening will tell what is wrong."""
    try:
        return parts_of(path)
    except (ValueError, OSError):
        return []
