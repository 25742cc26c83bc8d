"""What the verbs print: results on standard output, errors on standard error."""

import logging
import warnings
from collections.abc import Callable, Iterator
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


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of the package, each once, as lines on standard error without a place in its code."""
    package, shown = str(Path(__file__).parents[1]), set[str]()
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


class LoggedLines(logging.Handler):
    """Prints what a part of the package logs as lines on standard error, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        _errors.print(record.getMessage(), style="dim", soft_wrap=True)


def show_compiling() -> None:
    """Say on a terminal that loops are compiled, which happens once and takes seconds without another sign."""
    log = logging.getLogger("rvtssm.system.jit")
    if _errors.is_terminal and not log.handlers:
        log.addHandler(LoggedLines())
        log.setLevel(logging.INFO)
