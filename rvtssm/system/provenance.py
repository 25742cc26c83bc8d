"""Which program made a file: the version of the package, its commit and the date."""

import functools
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from rvtssm import __version__


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
