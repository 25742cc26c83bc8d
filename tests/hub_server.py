"""A stand-in for the Hugging Face Hub on this machine, which serves files."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 40


@dataclass
class Hub:
    """The files by repository, and where the server listens."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    num_downloads: int = 0
    address: str = ""


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def answer(self, content, status=200, **headers):
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def missing(self, code):
            self.answer({"error": "there is no such thing"}, 404, X_Error_Code=code)

        def do_GET(self):
            path = self.path.partition("?")[0]
            asked = re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if asked is None or asked[1] not in hub.files:
                self.missing("RepoNotFound")
            elif asked[3] not in hub.files[asked[1]]:
                self.missing("EntryNotFound")
            else:
                content = hub.files[asked[1]][asked[3]]
                hub.num_downloads += self.command == "GET"
                self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=COMMIT)

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
