"""Files that pages upload: limited in size, kept in the user's cache, checked in another process, then deleted."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from rvtssm.contrib.serve.session import Opening
from rvtssm.readers import event_suffixes
from rvtssm.readers.header import UNSAID_SIZE
from rvtssm.readers.index import index_path
from rvtssm.system.files import cache_folder, is_running
from rvtssm.system.user_error import UserError

_CHECK_S = 120.0
_SILENCE_S = 30.0  # an upload that stalls for this long fails
_MOST_NAME = 80  # the most letters of a file name that are shown


class Uploads:
    """The uploaded files of one server. Every page has at most one file; a new one replaces it once it is accepted.

    Args:
        max_bytes: Size of the largest file that is accepted.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        everything = cache_folder() / "uploads"
        everything.mkdir(parents=True, exist_ok=True)
        for folder in everything.iterdir():  # left behind by servers that were killed
            if folder.name.isdigit() and not is_running(int(folder.name)):
                _remove(folder)
        self.folder = everything / str(os.getpid())
        self.folder.mkdir(mode=0o700, exist_ok=True)

    async def receive(
        self, page: str, name: str, content: AsyncIterator[bytes], height: int | None, width: int | None
    ) -> Opening:
        """Store a file and check it.

        Args:
            page: Id of the page.
            name: Name of the file, as the page gives it.
            content: The parts of the file.
            height: Height of the sensor in pixels, if the page gives it.
            width: Width of the sensor in pixels, if the page gives it.

        Raises:
            UserError: The file is too large, stalls or cannot be read to its end.
        """
        # The name of the stranger is only shown; the file gets one of ours.
        suffix = next((suffix for suffix in event_suffixes() if name.lower().endswith(suffix)), "")
        folder = self.folder / page
        folder.mkdir(mode=0o700, exist_ok=True)
        earlier = [*folder.iterdir()]
        arriving = Path(tempfile.mkdtemp(dir=folder))
        path = arriving / f"upload{suffix}"
        num_bytes = 0
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)[:_MOST_NAME] or "the file"
        try:
            with open(path, "wb") as file:
                async for part in _arriving(content, shown):
                    num_bytes += len(part)
                    if num_bytes > self.max_bytes:
                        raise UserError(
                            "serve.upload",
                            name=shown,
                            found=f"it is larger than {self.max_bytes / 1e6:g} MB",
                            advice="cut it, or restart the server with a larger serve.max_upload_mb or with "
                            "recording=FOLDER",
                        )
                    file.write(part)
            await _check(path, shown, height, width)
        except BaseException:
            _remove(arriving)
            raise
        for replaced in earlier:
            _remove(replaced)
        return Opening(shown, str(path), height, width)

    def delete(self, page: str) -> None:
        """Delete the file of a page."""
        _remove(self.folder / page)

    def close(self) -> None:
        """Delete all files."""
        _remove(self.folder)


async def _arriving(content: AsyncIterator[bytes], name: str) -> AsyncIterator[bytes]:
    """Yield the parts of a file. Raise UserError if none arrives for too long, because the page would wait forever."""
    while True:
        try:
            yield await asyncio.wait_for(anext(content), _SILENCE_S)
        except StopAsyncIteration:
            return
        except TimeoutError:
            found = f"nothing of it has arrived for {_SILENCE_S:g} s"
            raise UserError("serve.upload", name=name, found=found, advice="send it again") from None


def _remove(folder: Path) -> None:
    """Delete a folder with its files, and the indexes of these files in the cache."""
    with contextlib.suppress(FileNotFoundError):  # a page that closes during an upload deletes it twice
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                index_path(path).unlink()
    shutil.rmtree(folder, ignore_errors=True)


async def _check(path: Path, name: str, height: int | None, width: int | None) -> None:
    """Read a file to its end in a separate process, because a damaged file may crash the process or keep it busy
    forever.
    """
    size = [f"{key}={value}" for key, value in (("height", height), ("width", width)) if value is not None]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rvtssm", "inspect", str(path), "--json", *size), stdout=pipe, stderr=pipe
    )
    try:
        told, errors = await asyncio.wait_for(process.communicate(), _CHECK_S)
    except TimeoutError:
        found = f"it takes longer than {_CHECK_S:g} s to read"
        raise UserError("serve.upload", name=name, found=found, advice="cut it") from None
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                await process.wait()
    if process.returncode == 0 and isinstance(json.loads(told), dict):
        return
    lines = " ".join(errors.decode(errors="replace").split()).removeprefix("rvtssm inspect: ")
    if UNSAID_SIZE in lines:
        advice = "give its width and height in pixels below Size, then upload it again"
        raise UserError("serve.upload", found=f"{name} {UNSAID_SIZE}", advice=advice)
    raise UserError("serve.upload", found=lines.replace(str(path), name)[:600] or f"{name} cannot be read")
