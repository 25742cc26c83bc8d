"""Local files that stand for those of an object store, with the parts of them that were read: a bounded cache.

A file `s3://BUCKET/NAME` is `files/s3/BUCKET/NAME` in the folder `remote` of the cache, with the size of the original
but, at first, without its content. So whatever lists and names files works as with local ones. What opens a file takes
`whole`, which loads all of it, or `open_parts`, which loads the blocks that are read. The folder belongs to one
machine; all its processes share it. Its path has to be the same on all machines of a cluster, which send each other
paths.

`states` holds a file for each of these files: which version it is of, and which of its blocks are there. A block is
noted after it was written, so that a process may be killed at any moment. If the cache is larger than RVTSSM_CACHE_GB
(50 by default), the files that were not used for the longest time lose their content. Nobody empties a file while
another process holds its lock, as all do while they open a file. A file that is open stays readable.
"""

import contextlib
import fcntl
import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from rvtssm.atomic_files import atomic_file, named_if_full, staging_folder
from rvtssm.cache import cache_folder
from rvtssm.remote.object_store import RemoteFile, describe, is_url, list_files, parts_of, read_range, upload

_BLOCK = 1 << 18  # bytes
_MOST_BLOCKS = 32  # in one request
_REQUESTS = 16  # at once, where many files are opened
_REQUESTS_OF_A_FILE = 4
_CACHE_GB = 50.0
_STATE = struct.Struct("<8s16sq32s")  # mark of these files, number of the copy, size and version; then a byte per block
_MARK = b"rvtssm 1"

_unchecked = [float("inf")]  # bytes that this process has loaded since it looked at the size of the cache
Result = TypeVar("Result")


def local_path(where: Path | str) -> Path:
    """Return the local path of a folder or file, and of what a URL names the path in the mirror.

    The mirror then has the files that the store has now. Raise ValueError if the store cannot be listed.
    """
    if not is_url(where):
        return Path(where)
    url = str(where)
    path = _folder("files").joinpath(*parts_of(url))
    found = {path / name if name else path: file for name, file in list_files(url).items()}
    for each, file in found.items():
        _place(each, file)
    for each in [path, *path.rglob("*")]:
        if each.is_file() and each not in found and not each.name.startswith("."):
            _remove(each)
    return path


def absolute_path(where: str) -> str:
    """Return the path from the root of this machine, and a URL as it is."""
    return where if is_url(where) else str(Path(where).resolve())


def is_mirrored(path: Path | str) -> bool:
    """Return whether a path is one of the mirror, whose content may have to be loaded."""
    return str(path).startswith(f"{_folder('files')}{os.sep}")


def with_urls(text: str) -> str:
    """Return a text in which paths of the mirror are replaced by URLs."""
    before, *parts = text.split(f"{_folder('files')}{os.sep}")
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
                copy = stack.enter_context(contextlib.closing(_Copy(each)))
                stack.enter_context(_held(copy))
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
    with staging_folder(_folder("uploads"), "upload") as folder:
        with named_if_full(folder):
            yield folder / path.name
        _place(path, upload(folder / path.name, _url_of(path)))


def load_ends(paths: Iterable[Path]) -> None:
    """Load the first and the last block of many files at once, where prepared files hold everything but frames."""

    def load(path: Path) -> None:
        with contextlib.closing(_Copy(path)) as copy:
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
        self._copy = _Copy(path)
        self._position = 0
        self._missing: tuple[int, int] | None = None
        self._next, self._run = -1, 1  # blocks: where the last load ended, and how many it was

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
        self._position += num_bytes
        return num_bytes

    def load_missing(self) -> bool:
        """Load what was missing when it was last read, more at once if it follows what was loaded before.

        Return whether something was missing.
        """
        if self._missing is None:
            return False
        start, stop = self._missing
        self._missing = None
        first = self._copy.first_missing(start, stop)
        if first is not None:
            self._run = min(2 * self._run, _MOST_BLOCKS) if first == self._next else 1
            stop = min(max(stop, (first + self._run) * _BLOCK), self._copy.num_bytes)
            self._copy.load(start, stop)
        self._next = -(-stop // _BLOCK)
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


class _State:
    """An open state file, locked. All zero: nothing is known of the file, as after a kill."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def header(self) -> tuple[bytes, int, bytes] | None:
        """Return the number of the copy, size and version; None if they are not known."""
        content = os.pread(self.descriptor, _STATE.size, 0)
        if len(content) < _STATE.size:
            return None
        mark, copy, num_bytes, version = _STATE.unpack(content)
        return (copy, num_bytes, version) if mark == _MARK else None

    def is_of(self, copy: "_Copy") -> bool:
        return (self.header() or (b"",))[0] == copy.number

    def blocks(self, num_bytes: int) -> bytearray:
        num_blocks = -(-num_bytes // _BLOCK)
        return bytearray(os.pread(self.descriptor, num_blocks, _STATE.size).ljust(num_blocks, b"\0"))

    def note(self, first: int, stop: int) -> None:
        os.pwrite(self.descriptor, b"\1" * (stop - first), _STATE.size + first)

    def reset(self, path: Path, file: RemoteFile) -> None:
        """Make a new copy without content; the state must be locked for this process alone."""
        os.ftruncate(self.descriptor, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.new")
        with open(staged, "wb") as empty:
            empty.truncate(file.num_bytes)
        _set_age(staged, file.version)
        os.replace(staged, path)
        os.pwrite(self.descriptor, _STATE.pack(_MARK, os.urandom(16), file.num_bytes, file.version), 0)


class _Copy:
    """An open file of the mirror. If another process empties it, it stays as it is until something is missing."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, _url_of(path)
        self.data = -1
        self.open()

    def open(self) -> None:
        self.close()
        while True:
            with _locked(self.path, fcntl.LOCK_SH) as state:
                header = state.header()
                if header is not None and self.path.exists():
                    self.number, self.num_bytes, self.version = header
                    self.data = os.open(self.path, os.O_RDWR)
                    self._has = state.blocks(self.num_bytes)
                    os.utime(state.descriptor)  # the time of its last use
                    return
            _place(self.path, describe(self.url))

    def close(self) -> None:
        if self.data >= 0:
            os.close(self.data)
            self.data = -1

    def first_missing(self, start: int, stop: int) -> int | None:
        """Return the first block of the bytes [start, stop) that is not there; None if all are."""
        found = self._has.find(0, start // _BLOCK, -(-stop // _BLOCK))
        return None if found < 0 else found

    def load(self, start: int, stop: int) -> None:
        """Load those of the bytes [start, stop) that are not there. Raise ValueError if that fails."""
        if start >= stop or self.first_missing(start, stop) is None:
            return
        with _locked(self.path, fcntl.LOCK_SH) as state:
            is_current = state.is_of(self)
            if is_current:  # others may have loaded more
                self._has = state.blocks(self.num_bytes)
        if not is_current:
            before = self.num_bytes, self.version
            self.open()
            if before != (self.num_bytes, self.version):
                raise ValueError(f"{self.url} was replaced while it was read; run again")
        missing = [block for block in range(start // _BLOCK, -(-stop // _BLOCK)) if not self._has[block]]
        runs: list[tuple[int, int]] = []
        for block in missing:
            if runs and runs[-1][1] == block and block - runs[-1][0] < _MOST_BLOCKS:
                runs[-1] = runs[-1][0], block + 1
            else:
                runs.append((block, block + 1))
        _make_room(len(missing) * _BLOCK)
        if len(runs) == 1:
            self._load_blocks(runs[0])
        elif runs:
            with ThreadPoolExecutor(_REQUESTS_OF_A_FILE) as threads:
                list(threads.map(self._load_blocks, runs))

    def _load_blocks(self, run: tuple[int, int]) -> None:
        first, stop = run
        content = memoryview(read_range(self.url, first * _BLOCK, min(stop * _BLOCK, self.num_bytes)))
        at = first * _BLOCK
        with named_if_full(self.path):
            while content:
                written = os.pwrite(self.data, content, at)
                content, at = content[written:], at + written
            os.fdatasync(self.data)  # before the note, in case the machine stops
        _set_age(self.data, self.version)
        with _locked(self.path, fcntl.LOCK_SH) as state:
            if state.is_of(self):
                state.note(first, stop)
        self._has[first:stop] = b"\1" * (stop - first)


@contextmanager
def _held(copy: _Copy) -> Iterator[None]:
    """Let no process empty a copy until the block ends, and open it again if that has happened already."""
    while True:
        with _locked(copy.path, fcntl.LOCK_SH) as state:
            if state.is_of(copy):
                yield
                return
        copy.open()


def _place(path: Path, file: RemoteFile) -> None:
    """Make sure that the mirror has this version of a file."""

    def is_there(state: _State) -> bool:
        return (state.header() or (b"",))[1:] == (file.num_bytes, file.version) and path.exists()

    state_path = _state_path(path)
    if state_path.exists():
        with open(state_path, "rb") as opened:  # without a lock, since it may be in use for long
            if is_there(_State(opened.fileno())):
                return
    with _locked(path, fcntl.LOCK_EX) as state:
        if not is_there(state):
            state.reset(path, file)


def _remove(path: Path) -> None:
    with _locked(path, fcntl.LOCK_EX) as state:
        os.ftruncate(state.descriptor, 0)
        path.unlink(missing_ok=True)


def _make_room(num_bytes: int) -> None:
    """Empty the files that were not used for the longest time if the cache is too large with `num_bytes` more.

    To look at all files costs time, so it is done after every 64 MiB or twentieth part of the cache.
    """
    most = _cache_bytes()
    _unchecked[0] += num_bytes
    if _unchecked[0] < min(1 << 26, most // 20):
        return
    _unchecked[0] = 0
    root, states = _folder("files"), _folder("states")
    found: list[tuple[float, int, Path]] = []
    for state_path in states.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            path = root / state_path.relative_to(states)
            if state_path.is_file() and (held := path.stat().st_blocks * 512):
                found.append((state_path.stat().st_mtime, held, path))
    left = sum(held for _, held, _ in found) + num_bytes
    for _, held, path in sorted(found):
        if left <= most:
            return
        with contextlib.suppress(BlockingIOError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as state:
            if (header := state.header()) is not None:
                state.reset(path, RemoteFile(*header[1:]))
                left -= held


def _cache_bytes() -> int:
    given = os.environ.get("RVTSSM_CACHE_GB") or str(_CACHE_GB)
    try:
        return int(float(given) * 1e9)
    except (ValueError, OverflowError):
        raise ValueError(f"RVTSSM_CACHE_GB={given} is not a number of gigabytes, such as 50") from None


def _set_age(file: Path | int, version: bytes) -> None:
    """Give a file a time of change that depends on its version alone: an index of a recording is bound to it."""
    age_ns = int.from_bytes(version[:7], "little")  # two years at most
    os.utime(file, ns=(age_ns, age_ns))


@contextmanager
def _locked(path: Path, how: int) -> Iterator[_State]:
    """Yield the state of a file, locked by `fcntl.flock`; the lock ends with the block, and with this process."""
    state_path = _state_path(path)
    state_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state_path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, how)
        yield _State(descriptor)
    finally:
        os.close(descriptor)


def _folder(name: str) -> Path:
    return (cache_folder() / "remote" / name).absolute()


def _state_path(path: Path) -> Path:
    return _folder("states") / path.relative_to(_folder("files"))


def _url_of(path: Path) -> str:
    scheme, *parts = path.relative_to(_folder("files")).parts
    return f"{scheme}://{'/'.join(parts)}"
