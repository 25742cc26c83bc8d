"""A stand-in for the Hugging Face Hub on this machine: it creates repositories, takes commits and serves files."""

import base64
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
    """The files by repository, which repositories are private, and where the server listens."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
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

        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            path = self.path.partition("?")[0]
            if self.headers.get("Authorization") != "Bearer hf_test":
                self.answer({"error": "Invalid username or password."}, 401)
            elif path == "/api/repos/create":
                asked = json.loads(data)
                repo = f"{asked['organization']}/{asked['name']}"
                if repo in hub.files:
                    self.answer({"error": "You already created this model repo", "url": f"{hub.address}/{repo}"}, 409)
                    return
                hub.files[repo] = {}
                hub.private[repo] = asked.get("visibility") == "private"
                self.answer({"url": f"{hub.address}/{repo}", "id": repo})
            elif "/preupload/" in path:
                asked = json.loads(data)["files"]
                self.answer(
                    {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
                )
            elif "/commit/" in path:
                repo = re.search("/api/models/(.+)/commit/", path)[1]
                for line in data.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        hub.files[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                self.answer({"commitUrl": f"{hub.address}/{repo}/commit/{COMMIT}", "commitOid": COMMIT})
            else:
                self.answer({})

        def do_GET(self):
            path = self.path.partition("?")[0]
            found = re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if path.startswith("/api/models/"):
                repo = "/".join(path.split("/")[3:5])
                names = [{"rfilename": name} for name in hub.files.get(repo, {})]
                if repo not in hub.files:
                    self.missing("RepoNotFound")
                else:
                    self.answer({"id": repo, "sha": COMMIT, "siblings": names, "private": hub.private.get(repo, False)})
            elif found is None or found[1] not in hub.files:
                self.missing("RepoNotFound")
            elif found[3] not in hub.files[found[1]]:
                self.missing("EntryNotFound")
            else:
                content = hub.files[found[1]][found[3]]
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
