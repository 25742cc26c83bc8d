"""Files that pages send: bounded, kept in the cache of the user, checked by another process, deleted at the end."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rvtssm.events.readers.index import index_path
from rvtssm.records import EVENT_SUFFIXES
from rvtssm.serve.session import Opening
from rvtssm.system.atomic_files import is_running
from rvtssm.system.cache import cache_folder
from rvtssm.system.user_error import UserError

_CHECK_S = 120.0
_SILENCE_S = 30.0  # of a page that sends a file
_MOST_NAME = 80  # letters


class Uploads:
    """The files of one server. Every page has at most one, and a new one replaces it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        everything = cache_folder() / "uploads"
        everything.mkdir(parents=True, exist_ok=True)
        for folder in everything.iterdir():  # of servers that were killed
            if folder.name.isdigit() and not is_running(int(folder.name)):
                _remove(folder)
        self.folder = everything / str(os.getpid())
        self.folder.mkdir(mode=0o700, exist_ok=True)

    async def receive(
        self, page: str, name: str, content: AsyncIterator[bytes], height: int | None, width: int | None
    ) -> Opening:
        """Store a file and check it. Raise ValueError if it is too large, stalls or cannot be read to its end."""
        suffix = next((suffix for suffix in EVENT_SUFFIXES if name.lower().endswith(suffix)), "")
        self.delete(page)
        folder = self.folder / page
        folder.mkdir(mode=0o700)
        path, num_bytes = folder / f"upload{suffix}", 0
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)[:_MOST_NAME] or "the file"
        try:
            with open(path, "wb") as file:
                async for part in _arriving(content, shown):
                    num_bytes += len(part)
                    if num_bytes > self.max_bytes:
                        raise UserError(
                            f"{shown} is larger than {self.max_bytes / 1e6:g} MB; cut it, or start the server with a "
                            "larger serve.max_upload_mb, or with recording=FOLDER"
                        )
                    file.write(part)
            await _check(path, shown, height, width)
        except BaseException:
            self.delete(page)
            raise
        return Opening(shown, str(path), height, width)

    def delete(self, page: str) -> None:
        """Delete the file of a page."""
        _remove(self.folder / page)

    def close(self) -> None:
        """Delete all files."""
        _remove(self.folder)


async def _arriving(content: AsyncIterator[bytes], name: str) -> AsyncIterator[bytes]:
    """Yield the parts of a file. Raise UserError if none comes for too long: it would block its page for ever."""
    while True:
        try:
            yield await asyncio.wait_for(anext(content), _SILENCE_S)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise UserError(f"nothing of {name} has arrived for {_SILENCE_S:g} s; send it again") from None


def _remove(folder: Path) -> None:
    """Delete a folder with its files, and the indexes of these files in the cache."""
    with contextlib.suppress(FileNotFoundError):  # a page that closes while it sends deletes it twice
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                index_path(path).unlink()
    shutil.rmtree(folder, ignore_errors=True)


async def _check(path: Path, name: str, height: int | None, width: int | None) -> None:
    """Read a file to its end in a process of its own, which a damaged file may crash or occupy for ever."""
    size = [f"{key}={value}" for key, value in (("height", height), ("width", width)) if value is not None]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rvtssm", "inspect", str(path), "--json", *size), stdout=pipe, stderr=pipe
    )
    try:
        told, errors = await asyncio.wait_for(process.communicate(), _CHECK_S)
    except TimeoutError:
        raise UserError(f"{name} takes longer than {_CHECK_S:g} s to read; cut it") from None
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                await process.wait()
    if process.returncode == 0 and isinstance(json.loads(told), dict):
        return
    lines = " ".join(errors.decode(errors="replace").split()).removeprefix("rvtssm inspect: ")
    raise UserError(lines.replace(str(path), name)[:600] or f"{name} cannot be read; copy it again")
