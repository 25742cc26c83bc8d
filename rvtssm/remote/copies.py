"""Copies of files of an object store in a bounded cache, of which only the blocks that were read are there.

The folder `files` of the cache holds the copies. They have the size of the original but, at first, not its content. The
folder `states` holds a file for each of them: which version it is of, and which of its blocks are there. A block is
noted after it was written, so that a process may be killed at any moment. If the cache is larger than RVTSSM_CACHE_GB
(50 by default), the copies that were not used for the longest time lose their content. Nobody empties a copy while
another process holds its lock, as all do while they open a file. A file that is open stays readable. A copy that
another program cut short, or replaced by a link, is made anew.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rvtssm.remote.object_store import RemoteFile, describe, read_range
from rvtssm.system.cache import cache_folder
from rvtssm.system.user_error import UserError

_BLOCK = 1 << 18  # bytes
_MOST_BLOCKS = 32  # in one request
_REQUESTS_OF_A_FILE = 4
_CACHE_GB = 50.0
_STATE = struct.Struct("<8s16sq32s")  # mark of these files, number of the copy, size and version; then a byte per block
_MARK = b"rvtssm 1"

_unchecked = [float("inf")]  # bytes that this process has loaded since it looked at the size of the cache


class State:
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

    def is_of(self, copy: "Copy") -> bool:
        return (self.header() or (b"",))[0] == copy.number

    def blocks(self, num_bytes: int) -> bytearray:
        num_blocks = -(-num_bytes // _BLOCK)
        return bytearray(os.pread(self.descriptor, num_blocks, _STATE.size).ljust(num_blocks, b"\0"))

    def note(self, first: int, stop: int) -> None:
        os.pwrite(self.descriptor, b"\1" * (stop - first), _STATE.size + first)

    def reset(self, path: Path, file: RemoteFile) -> None:
        """Make a new copy without content; the state must be locked for this process alone."""
        with _stored(path):
            os.ftruncate(self.descriptor, 0)
            _make_place(path)
            staged = _state_path(path).with_suffix(".new")
            with open(staged, "wb") as empty:
                empty.truncate(file.num_bytes)
            _set_age(staged, file.version)
            os.replace(staged, path)
            os.pwrite(self.descriptor, _STATE.pack(_MARK, os.urandom(16), file.num_bytes, file.version), 0)


class Copy:
    """An open file of the mirror. If another process empties it, it stays as it is until something is missing."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, url_of(path)
        self.data = -1
        self._next, self._run = -1, 1  # blocks: where the last `load_ahead` ended, and how many it was
        self.open()

    def open(self) -> None:
        self.close()
        while True:
            with locked(self.path, fcntl.LOCK_SH) as state:
                header = state.header()
                if header is not None and _is_intact(self.path, header[1]):
                    self.number, self.num_bytes, self.version = header
                    self.data = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
                    self._has = state.blocks(self.num_bytes)
                    os.utime(state.descriptor)  # the time of its last use
                    return
            place(self.path, describe(self.url))

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
        with locked(self.path, fcntl.LOCK_SH) as state:
            is_current = state.is_of(self)
            if is_current:  # others may have loaded more
                self._has = state.blocks(self.num_bytes)
        if not is_current:
            before = self.num_bytes, self.version
            self.open()
            if before != (self.num_bytes, self.version):
                raise UserError(f"{self.url} was replaced while it was read; run again")
        missing = [block for block in range(start // _BLOCK, -(-stop // _BLOCK)) if not self._has[block]]
        runs: list[tuple[int, int]] = []
        for block in missing:
            if runs and runs[-1][1] == block and block - runs[-1][0] < _MOST_BLOCKS:
                runs[-1] = runs[-1][0], block + 1
            else:
                runs.append((block, block + 1))
        make_room(len(missing) * _BLOCK)
        if len(runs) == 1:
            self._load_blocks(runs[0])
        elif runs:
            with ThreadPoolExecutor(_REQUESTS_OF_A_FILE) as threads:
                list(threads.map(self._load_blocks, runs))

    def load_ahead(self, start: int, stop: int) -> None:
        """Load as `load` does, and more than is asked for if that follows what was loaded before."""
        first = self.first_missing(start, stop)
        if first is not None:
            self._run = min(2 * self._run, _MOST_BLOCKS) if first == self._next else 1
            stop = min(max(stop, (first + self._run) * _BLOCK), self.num_bytes)
            self.load(start, stop)
        self._next = -(-stop // _BLOCK)

    def _load_blocks(self, run: tuple[int, int]) -> None:
        first, stop = run
        content = memoryview(read_range(self.url, first * _BLOCK, min(stop * _BLOCK, self.num_bytes)))
        at = first * _BLOCK
        with _stored(self.path):
            while content:
                written = os.pwrite(self.data, content, at)
                content, at = content[written:], at + written
            os.fdatasync(self.data)  # before the note, in case the machine stops
        _set_age(self.data, self.version)
        with locked(self.path, fcntl.LOCK_SH) as state:
            if state.is_of(self):
                with _stored(self.path):
                    state.note(first, stop)
        self._has[first:stop] = b"\1" * (stop - first)


@contextmanager
def held(copy: Copy) -> Iterator[None]:
    """Let no process empty a copy until the block ends, and open it again if that has happened already."""
    while True:
        with locked(copy.path, fcntl.LOCK_SH) as state:
            if state.is_of(copy):
                yield
                return
        copy.open()


def place(path: Path, file: RemoteFile) -> None:
    """Make sure that the mirror has this version of a file."""

    def is_there(state: State) -> bool:
        is_current = (state.header() or (b"",))[1:] == (file.num_bytes, file.version)
        return is_current and _is_intact(path, file.num_bytes)

    state_path = _state_path(path)
    if state_path.exists():
        with open(state_path, "rb") as opened:  # without a lock, since it may be in use for long
            if is_there(State(opened.fileno())):
                return
    with locked(path, fcntl.LOCK_EX) as state:
        if not is_there(state):
            state.reset(path, file)


def remove(path: Path) -> None:
    with locked(path, fcntl.LOCK_EX) as state:
        os.ftruncate(state.descriptor, 0)
        path.unlink(missing_ok=True)


def make_room(num_bytes: int) -> None:
    """Empty the files that were not used for the longest time if the cache is too large with `num_bytes` more.

    To look at all files costs time, so it is done after every 64 MiB or twentieth part of the cache.
    """
    most = _cache_bytes()
    _unchecked[0] += num_bytes
    if _unchecked[0] < min(1 << 26, most // 20):
        return
    _unchecked[0] = 0
    found: list[tuple[float, int, Path]] = []
    for path in mirror_folder("files").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and (on_disk := path.lstat().st_blocks * 512):
                state_path = _state_path(path)
                used_s = state_path.stat().st_mtime if state_path.exists() else 0.0
                found.append((used_s, on_disk, path))
    left = sum(on_disk for _, on_disk, _ in found) + num_bytes
    for _, on_disk, path in sorted(found):
        if left <= most:
            return
        with contextlib.suppress(BlockingIOError), locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as state:
            if (header := state.header()) is not None:
                state.reset(path, RemoteFile(*header[1:]))
            else:
                path.unlink()
            left -= on_disk


def _cache_bytes() -> int:
    given = os.environ.get("RVTSSM_CACHE_GB") or str(_CACHE_GB)
    try:
        return int(float(given) * 1e9)
    except (ValueError, OverflowError):
        raise UserError(f"RVTSSM_CACHE_GB={given} is not a number of gigabytes, such as 50") from None


def _set_age(file: Path | int, version: bytes) -> None:
    """Give a file a time of change that depends on its version alone: an index of a recording is bound to it."""
    age_ns = int.from_bytes(version[:7], "little")  # two years at most
    os.utime(file, ns=(age_ns, age_ns))


@contextmanager
def locked(path: Path, how: int) -> Iterator[State]:
    """Yield the state of a file, locked by `fcntl.flock`; the lock ends with the block, and with this process."""
    state_path = _state_path(path)
    with _stored(path):
        state_path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state_path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, how)
        yield State(descriptor)
    finally:
        os.close(descriptor)


def mirror_folder(name: str) -> Path:
    return (cache_folder() / "remote" / name).absolute()


def _state_path(path: Path) -> Path:
    """Return the state of a copy: all in one folder, since the name of an object may become that of a folder."""
    name = os.fsencode(path.relative_to(mirror_folder("files")))
    return mirror_folder("states") / hashlib.sha256(name).hexdigest()


def _is_intact(path: Path, num_bytes: int) -> bool:
    """Return whether a file of this size lies in the mirror itself, and neither it nor its folders are links."""
    root = mirror_folder("files")
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_inside = path.parent.resolve() == root.resolve() / path.parent.relative_to(root)
    return is_inside and stat.S_ISREG(found.st_mode) and found.st_size == num_bytes


def _make_place(path: Path) -> None:
    """Make the folders of a copy. Links are removed, and copies of what was a folder or a file in the store before."""
    root = mirror_folder("files")
    for above in reversed(path.relative_to(root).parents[:-1]):  # from the outermost on, so that no link is followed
        if (root / above).is_symlink() or (root / above).is_file():
            (root / above).unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


@contextmanager
def _stored(path: Path) -> Iterator[None]:
    """Raise UserError, which names the object and the cache, if the disk does not take what is written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{url_of(path)} cannot be kept in {mirror_folder('files').parent} ({error.strerror or error}); make room "
            "there, or name a folder on another disk by RVTSSM_CACHE_DIR"
        ) from None


def url_of(path: Path) -> str:
    scheme, *parts = path.relative_to(mirror_folder("files")).parts
    return f"{scheme}://{'/'.join(parts)}"
