"""Copies of files of an object store in a bounded cache. A copy only holds the blocks that were read.

The folder `files` of the cache holds the copies. A copy has the size of the original but no content at first. The
folder `states` holds one file per copy, which records the version of the copy and the blocks that it holds. A block is
recorded after it was written, so a process may be killed at any moment. If the cache grows beyond RVTSSM_CACHE_GB (50
by default), the least recently used copies lose their content. No process empties a copy while another one holds its
lock, and every process holds the lock while it opens a copy. An open file stays readable. A copy that another program
truncated or replaced with a link is made anew.
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
_MOST_BLOCKS = 32  # the most blocks of one request
_REQUESTS_OF_A_FILE = 4
_CACHE_GB = 50.0
_STATE = struct.Struct("<8s16sq32s")  # signature, number of the copy, size and version; a byte per block follows
_MARK = b"rvtssm 1"

unchecked = [float("inf")]  # bytes loaded by this process since it last checked the size of the cache


class State:
    """An open and locked state file. If it is all zeros, nothing is known about the copy, as after a kill.

    Args:
        descriptor: Descriptor of the open file.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def header(self) -> tuple[bytes, int, bytes]:
        """Return number, size in bytes and version of the copy; an empty number and a size of -1 if unknown."""
        content = os.pread(self.descriptor, _STATE.size, 0)
        if not content.startswith(_MARK) or len(content) < _STATE.size:
            return b"", -1, b""
        _, copy, num_bytes, version = _STATE.unpack(content)
        return copy, num_bytes, version

    def is_of(self, copy: "Copy") -> bool:
        """Return whether the state belongs to this copy, and not to a later one of the same file."""
        return self.header()[0] == copy.number

    def blocks(self, num_bytes: int) -> bytearray:
        """Return one byte per block of a file of `num_bytes`, 1 if the copy holds the block."""
        num_blocks = -(-num_bytes // _BLOCK)
        return bytearray(os.pread(self.descriptor, num_blocks, _STATE.size).ljust(num_blocks, b"\0"))

    def note(self, first: int, stop: int) -> None:
        """Record that the copy holds the blocks [first, stop)."""
        os.pwrite(self.descriptor, b"\1" * (stop - first), _STATE.size + first)

    def reset(self, path: Path, file: RemoteFile) -> None:
        """Make a new copy without content. The caller must hold the exclusive lock of the state.

        Args:
            path: The copy.
            file: Size and version of the original.
        """
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
    """An open file of the mirror. If another process empties the copy, this one stays usable until a block is missing.

    Args:
        path: The copy in the mirror.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, url_of(path)
        self.data = -1
        self._next, self._run = -1, 1  # in blocks: where the last `load_ahead` ended, and its length
        self.open()

    def open(self) -> None:
        """Open the copy again, and make it first if it is missing or damaged."""
        self.close()
        while True:
            with locked(self.path, fcntl.LOCK_SH) as state:
                self.number, self.num_bytes, self.version = state.header()
                if _is_intact(self.path, self.num_bytes):
                    self.data = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
                    self._has = state.blocks(self.num_bytes)
                    os.utime(state.descriptor)  # records the time of last use
                    return
            place(self.path, describe(self.url))

    def close(self) -> None:
        if self.data >= 0:
            os.close(self.data)
            self.data = -1

    def first_missing(self, start: int, stop: int) -> int | None:
        """Return the first block of the bytes [start, stop) that is missing, or None."""
        found = self._has.find(0, start // _BLOCK, -(-stop // _BLOCK))
        return None if found < 0 else found

    def load(self, start: int, stop: int) -> None:
        """Load the missing blocks of the bytes [start, stop).

        Raises:
            UserError: The store cannot be read, the disk is full, or the original was replaced.
        """
        if start >= stop or self.first_missing(start, stop) is None:
            return
        with locked(self.path, fcntl.LOCK_SH) as state:
            is_current = state.is_of(self)
            if is_current:  # other processes may have loaded more
                self._has = state.blocks(self.num_bytes)
        if not is_current:
            before = self.num_bytes, self.version
            self.open()
            if before != (self.num_bytes, self.version):
                raise UserError(f"{self.url} was replaced during reading; run again")
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
        """Load the bytes [start, stop) like `load`, and more if they follow the bytes that were loaded last."""
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
            os.fdatasync(self.data)  # before recording the blocks, in case the machine crashes
        _set_age(self.data, self.version)
        with locked(self.path, fcntl.LOCK_SH) as state:
            if state.is_of(self):
                with _stored(self.path):
                    state.note(first, stop)
        self._has[first:stop] = b"\1" * (stop - first)


@contextmanager
def held(copy: Copy) -> Iterator[None]:
    """Keep all processes from emptying a copy until the block ends. If it was emptied before, open it again first."""
    while True:
        with locked(copy.path, fcntl.LOCK_SH) as state:
            if state.is_of(copy):
                yield
                return
        copy.open()


def place(path: Path, file: RemoteFile) -> None:
    """Make sure that the mirror has a copy of this version of a file.

    Args:
        path: The copy in the mirror.
        file: Size and version of the original.
    """

    def is_there(state: State) -> bool:
        return state.header()[1:] == (file.num_bytes, file.version) and _is_intact(path, file.num_bytes)

    state_path = _state_path(path)
    if state_path.exists():
        with open(state_path, "rb") as opened:  # without a lock, since other processes may hold it for long
            if is_there(State(opened.fileno())):
                return
    with locked(path, fcntl.LOCK_EX) as state:
        if not is_there(state):
            state.reset(path, file)


def remove(path: Path) -> None:
    """Delete a copy."""
    with locked(path, fcntl.LOCK_EX) as state:
        os.ftruncate(state.descriptor, 0)
        path.unlink(missing_ok=True)


def make_room(num_bytes: int) -> None:
    """Empty the least recently used copies if the cache would be too large with `num_bytes` more.

    Looking at all files takes time, so this is done after every 64 MiB or twentieth of the cache, whichever is less.
    """
    most = _cache_bytes()
    unchecked[0] += num_bytes
    if unchecked[0] < min(1 << 26, most // 20):
        return
    unchecked[0] = 0
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
            number, num_bytes, version = state.header()
            if number:
                state.reset(path, RemoteFile(num_bytes, version))
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
    """Set a modification time that depends on the version only, because the index of a recording depends on it."""
    age_ns = int.from_bytes(version[:7], "little")  # at most two years
    os.utime(file, ns=(age_ns, age_ns))


@contextmanager
def locked(path: Path, how: int) -> Iterator[State]:
    """Yield the state of a copy, locked with `fcntl.flock`. The lock ends with the block, or with this process.

    Args:
        path: The copy.
        how: The operation of `fcntl.flock`.
    """
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
    """Return a folder of the mirror: `files`, `states` or `uploads`."""
    return (cache_folder() / "remote" / name).absolute()


def _state_path(path: Path) -> Path:
    """Return the state file of a copy. All lie in one folder, since an object's name may later be that of a folder."""
    name = os.fsencode(path.relative_to(mirror_folder("files")))
    return mirror_folder("states") / hashlib.sha256(name).hexdigest()


def _is_intact(path: Path, num_bytes: int) -> bool:
    """Return whether a regular file of this size lies in the mirror itself, not behind a link."""
    root = mirror_folder("files")
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_inside = path.parent.resolve() == root.resolve() / path.parent.relative_to(root)
    return is_inside and stat.S_ISREG(found.st_mode) and found.st_size == num_bytes


def _make_place(path: Path) -> None:
    """Make the folders of a copy. Remove links and older copies that are in the way."""
    root = mirror_folder("files")
    for above in reversed(path.relative_to(root).parents[:-1]):  # from the outermost on, so that no link is followed
        if (root / above).is_symlink() or (root / above).is_file():
            (root / above).unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


@contextmanager
def _stored(path: Path) -> Iterator[None]:
    """Raise UserError, which names the object and the cache, if the disk cannot store what is written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{url_of(path)} cannot be kept in {mirror_folder('files').parent} ({error.strerror or error}); make room "
            "there, or set RVTSSM_CACHE_DIR to a folder on another disk"
        ) from None


def url_of(path: Path) -> str:
    """Return the URL of the original of a copy."""
    scheme, *parts = path.relative_to(mirror_folder("files")).parts
    return f"{scheme}://{'/'.join(parts)}"
