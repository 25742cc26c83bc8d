"""Write files that are either complete or absent, name damaged ones, and say which program writes a file."""

import contextlib
import difflib
import errno
import functools
import glob
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rvtssm import __version__
from rvtssm.system.user_error import UserError, in_one_line, key_of

_ABANDONED_AFTER_S = 3600.0  # no writer of this package pauses for this long
_TEMPORARY = re.compile(r"\.[^.]+\.\d+-\d+\.tmp$")  # the end of names made with `_writer`
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_HOST = socket.gethostname().replace(".", "-")

# Errors that numpy, h5py and the readers of compressed files raise for a damaged file. RuntimeError includes
# RecursionError. numpy raises SyntaxError and TokenError for a damaged header.
FILE_ERRORS = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
# Errors of the disk or the system, which say nothing about the content of a file.
_OF_THE_SYSTEM = {errno.EACCES, errno.EPERM, errno.EAGAIN, errno.ENOLCK, errno.EIO, errno.ESTALE, errno.EMFILE}
# The same as FILE_ERRORS, and errors that follow if values in a file have the wrong type.
CONTENT_ERRORS = (*FILE_ERRORS, TypeError, AttributeError)


@functools.cache
def configs_dir() -> Path:
    """Return the folder of YAML files: at the top of a checkout, or inside the package of an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError("file.missing", name="configs/", found=f"not in or beside {package}", advice="install rvtssm again")


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It becomes `path` if the block ends without an error.

    The temporary name contains the host, the process and the start time of the process. Writers therefore do not
    disturb each other, and abandoned files can be recognised even if a later process has the same id.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{_writer()}")
    try:
        with named_if_full(path):
            yield staged
            replace_file(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def replace_file(staged: Path, path: Path) -> None:
    """Rename a file to `path` after its content has reached the disk."""
    with open(staged, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(staged, path)


@contextlib.contextmanager
def named_if_full(path: Path | str) -> Iterator[None]:
    """Add `path` to the OSError of a full disk, which does not name a file."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def staging_folder(folder: Path | str, name: str) -> Iterator[Path]:
    """Yield a new hidden folder in `folder`, for files that are moved out of it once all are complete.

    The folder is removed after the block, together with folders of the same name that killed processes left behind.

    Args:
        folder: The folder to work in, created if missing.
        name: Part of the name of the hidden folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(f".{glob.escape(name)}-*"):
        if _TEMPORARY.search(abandoned.name) and _is_orphan(abandoned):
            shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-", suffix=f".{_writer()}") as staged:
        yield Path(staged)


def remove_abandoned(folder: Path | str) -> None:
    """Delete the temporary files in and below `folder` whose writer has ended."""
    for staged in Path(folder).rglob(".*.tmp"):
        with contextlib.suppress(OSError):  # the writer just finished, or the folder is read-only
            is_ours = _TEMPORARY.search(staged.name) is not None
            if is_ours and (_is_orphan(staged) or time.time() - staged.stat().st_mtime > _ABANDONED_AFTER_S):
                staged.unlink()


def _writer() -> str:
    """Return the end of the names of this process's temporary files."""
    return f"{_HOST}.{os.getpid()}-{_started(os.getpid())}.tmp"


def _is_orphan(staged: Path) -> bool:
    """Return whether the writer ran on this machine and has ended."""
    _, host, writer, _ = staged.name.rsplit(".", 3)
    pid, _, started = writer.partition("-")
    return host == _HOST and pid.isdigit() and not is_running(int(pid), started)


def is_running(pid: int, started: str = "") -> bool:
    """Return whether a process exists.

    Args:
        pid: Id of the process.
        started: Its start time as `_started` gives it; empty to accept any.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        state = _process_state(pid)
        # Z: the process has ended, but its parent has not collected it yet
        return state[0] != "Z" and started in ("", "0", state[19])
    return True


@functools.cache
def _started(pid: int) -> str:
    """Return the start time of a process in ticks since boot; 0 if the system does not tell."""
    try:
        return _process_state(pid)[19]
    except OSError:
        return "0"


def _process_state(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat (Linux) from the third on. The second one, a name, may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def check_name(name: str) -> None:
    """Raise UserError if the name of a file or a folder is not UTF-8: no file of results can hold it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError("file.name", name=ascii(name)) from None


def did_you_mean(path: Path | str) -> str:
    """Return a question that names the file most like a missing one in its folder; empty if there is none.

    Of a link that leads nowhere, return where it leads.
    """
    path = Path(path)
    if path.is_symlink():
        return f"; it is a link to {os.readlink(path)}, which is missing or leads back"
    if not path.parent.is_dir():
        return ""
    for name in difflib.get_close_matches(path.name, os.listdir(path.parent), 1):
        return f"; did you mean {name}?"
    return ""


@contextlib.contextmanager
def file_errors(
    path: Path | str,
    fault: str = " is damaged",
    advice: str = "copy it again",
    errors: tuple[type[Exception], ...] = FILE_ERRORS,
    key: str = "file.damaged",
) -> Iterator[None]:
    """Raise UserError with the text "PATH FAULT (REASON); ADVICE" in place of errors of a library that reads `path`.

    A ValueError that starts with the path is one of this package and is passed on unchanged.

    Args:
        path: The file that is read.
        fault: What is wrong with it, with a leading space.
        advice: What the user should do.
        errors: The exceptions to replace.
        key: The key of the error, unless the replaced one has a key.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
            raise UserError(
                "file.unreadable", name=path, found=f"it cannot be read ({os.strerror(error.errno)})"
            ) from None
        reason = in_one_line(error)[:300]
        raise UserError(key_of(error, key), f"{path}{fault} ({reason}); {advice}") from None


def cache_folder() -> Path:
    """Return the cache folder: in RVTSSM_CACHE_DIR, XDG_CACHE_HOME or ~/.cache, whichever is set first."""
    cache = os.environ.get("RVTSSM_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "rvtssm"


def written_by() -> dict[str, str]:
    """Return version, commit and today's date, for a file that is written now."""
    return {"rvtssm": __version__, "commit": commit(), "date": datetime.now(UTC).date().isoformat()}


@functools.cache
def commit() -> str:
    """Return the commit of the package, followed by "+changes" if files differ from it; empty outside a checkout."""
    folder = Path(__file__).resolve().parents[1]
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:  # inside another repository
        return ""
    head = _git(folder, "rev-parse", "--short=12", "HEAD") or ""
    if head and _git(folder, "status", "--porcelain", "--untracked-files=no", "."):
        return f"{head}+changes"
    return head


def processor() -> str:
    """Return the name of the processor of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return done.stdout.strip()
