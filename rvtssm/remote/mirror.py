"""Local files that stand in for files of an object store and hold only the parts that were read.

A file `s3://BUCKET/NAME` becomes `files/s3/BUCKET/NAME` in the folder `remote` of the cache, with the size of the
original but no content at first. Code that lists and names files therefore works as with local ones. Code that opens a
file uses `whole`, which loads all of it, or `open_parts`, which loads blocks as they are read. The folder belongs to
one machine and is shared by all its processes. On a cluster its path must be the same on all machines, because they
send each other paths.
"""

import contextlib
import io
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from rvtssm.remote.copies import Copy, held, mirror_folder, place, remove, url_of
from rvtssm.remote.object_store import is_url, list_files, parts_of, upload
from rvtssm.system.atomic_files import atomic_file, named_if_full, staging_folder
from rvtssm.system.user_error import UserError

_MOST_NAME_BYTES = 255
_REQUESTS = 16  # parallel requests when many files are opened
Result = TypeVar("Result")


def local_path(where: Path | str) -> Path:
    """Return the local path of a folder or file. For a URL, return its path in the mirror.

    The mirror is updated to the files that the store has now.

    Args:
        where: A path or a URL.

    Raises:
        UserError: The store cannot be listed, or an object has a name that no file on this machine can have.
    """
    if not is_url(where):
        return Path(where)
    url = str(where)
    path = mirror_folder("files").joinpath(*parts_of(url))
    listed = list_files(url)
    _check_names(url, listed)
    found = {path / name if name else path: file for name, file in listed.items()}
    for each, file in found.items():
        place(each, file)
    for each in [path, *path.rglob("*")]:
        if each.is_file() and each not in found:
            remove(each)
    return path


def _check_names(url: str, names: Collection[str]) -> None:
    """Raise UserError for an object that would be both a file and a folder, or whose name is too long for a file."""
    url = url.rstrip("/")
    for name in names:
        parts = name.split("/")
        num_bytes = max(len(os.fsencode(part)) for part in parts)
        if num_bytes > _MOST_NAME_BYTES:
            raise UserError(
                f"{url}/{name[:200]}... has a name of {num_bytes} bytes, but files on this machine allow at most "
                f"{_MOST_NAME_BYTES}; give it a shorter name in the store"
            )
        above = ["/".join(parts[:count]) for count in range(len(parts))] if name else []
        if shared := [folder for folder in above if folder in names]:
            raise UserError(
                f"{f'{url}/{shared[0]}'.rstrip('/')} is an object, but {url}/{name} lies in a folder of that name; "
                "rename one of them, since a file on this machine cannot also be a folder"
            )


def absolute_path(where: str) -> str:
    """Return the absolute path on this machine. A URL is returned unchanged."""
    return where if is_url(where) else str(Path(where).resolve())


def is_mirrored(path: Path | str) -> bool:
    """Return whether a path lies in the mirror, so that its content may have to be loaded."""
    return str(path).startswith(f"{mirror_folder('files')}{os.sep}")


def with_urls(text: str) -> str:
    """Return a text with the paths of the mirror replaced by their URLs."""
    before, *parts = text.split(f"{mirror_folder('files')}{os.sep}")
    return before + "".join(part.replace("/", "://", 1) for part in parts)


@contextmanager
def whole(path: Path | str) -> Iterator[None]:
    """Load a file, or all files of a folder, and keep them loaded until the block ends. Open the file inside the block.

    Paths outside the mirror are left alone.
    """
    with ExitStack() as stack:
        if is_mirrored(path):
            path = Path(path)
            for each in [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]:
                copy = stack.enter_context(contextlib.closing(Copy(each)))
                stack.enter_context(held(copy))
                copy.load(0, copy.num_bytes)
        yield


@contextmanager
def uploaded_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` if the block ends without an error.

    If `path` lies in the mirror, the file is uploaded and its content is not kept on this machine.
    """
    path = Path(path)
    if not is_mirrored(path):
        with atomic_file(path) as staged:
            yield staged
        return
    with staging_folder(mirror_folder("uploads"), "upload") as folder:
        with named_if_full(folder):
            yield folder / path.name
        place(path, upload(folder / path.name, url_of(path)))


def load_ends(paths: Iterable[Path]) -> None:
    """Load the first and the last block of many files in parallel. In prepared files they hold all except frames."""

    def load(path: Path) -> None:
        with contextlib.closing(Copy(path)) as copy:
            copy.load(0, 1)
            copy.load(copy.num_bytes - 1, copy.num_bytes)

    with ThreadPoolExecutor(_REQUESTS) as threads:
        list(threads.map(load, [path for path in paths if is_mirrored(path) and not path.is_dir()]))


class PartialFile(io.RawIOBase):
    """A file of the mirror, open for reading. Blocks are loaded when they are read.

    If `loads` is False, reading a missing block raises an OSError, and `load_missing` then loads it.

    Args:
        path: The file in the mirror.
    """

    loads = True

    def __init__(self, path: Path) -> None:
        self._copy = Copy(path)
        self._position = 0
        self._missing: tuple[int, int] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._copy.num_bytes}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        start = self._position
        stop = min(start + len(view), self._copy.num_bytes)
        if stop <= start:
            return 0
        if self._copy.first_missing(start, stop) is not None:
            self._missing = start, stop
            if not self.loads:
                raise OSError("is not loaded yet")
            self.load_missing()
        num_bytes = os.preadv(self._copy.data, [view[: stop - start]], start)
        if not num_bytes:
            raise UserError(f"the copy of {self._copy.url} was truncated during reading; run again")
        self._position += num_bytes
        return num_bytes

    def load_missing(self) -> bool:
        """Load the block that was missing at the last read. Return whether one was missing."""
        if self._missing is None:
            return False
        start, stop = self._missing
        self._missing = None
        self._copy.load_ahead(start, stop)
        return True

    def close(self) -> None:
        if not self.closed:
            self._copy.close()
        super().close()


def open_parts(path: Path | str) -> io.RawIOBase | io.BufferedReader:
    """Open a file for reading bytes. Of a file in the mirror, only the parts that are read are loaded."""
    return PartialFile(Path(path)) if is_mirrored(path) else open(path, "rb")


def loading(file: PartialFile | None, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, which reads `file` inside a library. Without a file, just call it.

    If a block is missing, it is loaded outside the library and `read` is called again. Otherwise a library that holds a
    lock while it reads, such as h5py, would wait for network threads that wait for the same lock.

    Args:
        file: The file that `read` uses, or None.
        read: A function that can be called again after an error.
    """
    if file is None:
        return read()
    while True:
        file.loads = False
        try:
            return read()
        except Exception:
            if not file.load_missing():
                raise
        finally:
            file.loads = True
