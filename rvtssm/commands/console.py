"""What the verbs print: results on standard output, errors on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from rvtssm.remote.mirror import with_urls

console = Console(markup=False, highlight=False)  # names of files may hold brackets
_errors = Console(stderr=True, markup=False, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print text on standard output; long lines are left to the terminal to wrap."""
    console.print(with_urls(text), style=style, soft_wrap=True)


@contextmanager
def changing_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text on standard error in place of the one before; in a terminal only."""
    with _errors.status("", spinner="dots") as status:
        yield status.update


def say_error(text: str) -> None:
    """Print a line in red on standard error."""
    _errors.print(with_urls(text), style="red", soft_wrap=True)
