"""What the verbs print: what they are about to do, results on standard output, errors on standard error."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

console = Console(markup=False, highlight=False)  # names of files may hold brackets
_errors = Console(stderr=True, markup=False, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print text on standard output; long lines are left to the terminal to wrap."""
    console.print(text, style=style, soft_wrap=True)


@contextmanager
def changing_line(text: str) -> Iterator[Callable[[str], None]]:
    """Show a text on standard error and yield a function that replaces it; in a terminal only."""
    with _errors.status(text, spinner="dots") as status:
        yield status.update


def say_error(text: str) -> None:
    """Print a line in red on standard error."""
    _errors.print(text, style="red", soft_wrap=True)


def tell(text: str) -> None:
    """Print text on standard error, beside lines for programs on standard output."""
    _errors.print(text, soft_wrap=True)


def tell_log(text: str, level: str = "INFO") -> None:
    """Print a line with time and level on standard error, for the journal of a service; nothing in a terminal.

    systemd's journal reads the level from the number in front (sd-daemon(3)).
    """
    if _errors.is_terminal:
        return
    number = ""
    if "JOURNAL_STREAM" in os.environ:
        number = {"INFO": "<6>", "WARNING": "<4>"}[level]
    _errors.print(f"{number}{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {level} {text}", soft_wrap=True)


def tell_warning(text: str) -> None:
    """Print a warning on standard error: for a log with its time, in a terminal in colour."""
    if _errors.is_terminal:
        _errors.print(f"warning: {text}", style="yellow", soft_wrap=True)
    else:
        tell_log(text, "WARNING")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of the package, each once, as lines on standard error without a place in its code."""
    package = str(Path(__file__).parents[1])
    shown = set[str]()
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *place: Any, **named: Any) -> None:
            if not filename.startswith(package):
                show_other(message, category, filename, *place, **named)
            elif str(message) not in shown:
                shown.add(str(message))
                _errors.print(f"warning: {message}", style="yellow", soft_wrap=True)

        warnings.showwarning = show
        yield


def announce(verb: str, **facts: object) -> None:
    """Print on one line what a command is about to do: the name and the value of every fact that is not None."""
    shown = (f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value is not None)
    say(f"about to {verb}: {', '.join(shown)}")


def say_replaced(folder: Path, name: str) -> None:
    """Say so before the results of an earlier command, of which `name`.json is one file, are replaced."""
    summary = folder / f"{name}.json"
    if summary.is_file():
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.stat().st_mtime))
        say(f"replaces the results of {written} in {folder}; out= chooses another folder")


def say_written(folder: Path, names: Iterable[str]) -> None:
    """Say which files of a folder were written."""
    say(f"wrote {', '.join(str(folder / name) for name in names)}")
