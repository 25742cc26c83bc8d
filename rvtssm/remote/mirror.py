"""Local files that stand for those of an object store, with the parts of them that were read.

A file `s3://BUCKET/NAME` is `files/s3/BUCKET/NAME` in the folder `remote` of the cache, with the size of the original
but, at first, without its content. So whatever lists and names files works as with local ones. What opens a file takes
`whole`, which loads all of it, or `open_parts`, which loads the blocks that are read. The folder belongs to one
machine; all its processes share it. Its path has to be the same on all machines of a cluster, which send each other
paths.
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
_REQUESTS = 16  # at once, where many files are opened
Result = TypeVar("Result")


def local_path(where: Path | str) -> Path:
    """Return the local path of a folder or file, and of what a URL names the path in the mirror.

    The mirror then has the files that the store has now. Raise ValueError if the store cannot be listed, or if files on
    this machine cannot have the names of its objects.
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
    """Raise UserError for an object that would be a file and a folder, or whose name is longer than a file's can be."""
    url = url.rstrip("/")
    for name in names:
        parts = name.split("/")
        num_bytes = max(len(os.fsencode(part)) for part in parts)
        if num_bytes > _MOST_NAME_BYTES:
            raise UserError(
                f"{url}/{name[:200]}... has a name of {num_bytes} bytes, and files on this machine have at most "
                f"{_MOST_NAME_BYTES}; give it a shorter one in the store"
            )
        above = ["/".join(parts[:count]) for count in range(len(parts))] if name else []
        if shared := [folder for folder in above if folder in names]:
            raise UserError(
                f"{f'{url}/{shared[0]}'.rstrip('/')} is an object, and {url}/{name} lies in a folder of that name; "
                "give one of them another name, since a file on this machine cannot also be a folder"
            )


def absolute_path(where: str) -> str:
    """Return the path from the root of this machine, and a URL as it is."""
    return where if is_url(where) else str(Path(where).resolve())


def is_mirrored(path: Path | str) -> bool:
    """Return whether a path is one of the mirror, whose content may have to be loaded."""
    return str(path).startswith(f"{mirror_folder('files')}{os.sep}")


def with_urls(text: str) -> str:
    """Return a text in which paths of the mirror are replaced by URLs."""
    before, *parts = text.split(f"{mirror_folder('files')}{os.sep}")
    return before + "".join(part.replace("/", "://", 1) for part in parts)


@contextmanager
def whole(path: Path | str) -> Iterator[None]:
    """Load all of a file, or of all files in a folder, and keep it until the block ends. Open it in the block.

    Other paths than those of the mirror are left alone.
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
    """Yield a temporary path, which becomes `path` if the block ends without an error.

    If `path` is one of the mirror, the file is uploaded, and no copy of it stays here.
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
    """Load the first and the last block of many files at once, where prepared files hold everything but frames."""

    def load(path: Path) -> None:
        with contextlib.closing(Copy(path)) as copy:
            copy.load(0, 1)
            copy.load(copy.num_bytes - 1, copy.num_bytes)

    with ThreadPoolExecutor(_REQUESTS) as threads:
        list(threads.map(load, [path for path in paths if is_mirrored(path) and not path.is_dir()]))


class PartialFile(io.RawIOBase):
    """A file of the mirror, open for reading, whose blocks are loaded when they are read.

    If `loads` is False, reading what is not there raises an OSError, and `load_missing` loads it.
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
            raise UserError(f"the copy of {self._copy.url} was cut short while it was read; run again")
        self._position += num_bytes
        return num_bytes

    def load_missing(self) -> bool:
        """Load what was missing when it was last read. Return whether something was missing."""
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
    """Open a file for reading bytes; of a file in the mirror only what is read is loaded."""
    return PartialFile(Path(path)) if is_mirrored(path) else open(path, "rb")


def loading(file: PartialFile | None, read: Callable[[], Result]) -> Result:
    """Return what `read` returns, which reads `file` inside a library; without a file, call it once.

    What is missing is loaded out here, and then it is read again. A library that holds a lock while it reads, as h5py
    does, would otherwise wait for threads of the network that wait for this lock.
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
