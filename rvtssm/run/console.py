"""What the verbs print: results on standard output, errors on standard error."""

from rich.console import Console

console = Console(markup=False, highlight=False)  # names of files may hold brackets
_errors = Console(stderr=True, markup=False, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print text on standard output; long lines are left to the terminal to wrap."""
    console.print(text, style=style, soft_wrap=True)


def say_error(text: str) -> None:
    """Print a line in red on standard error."""
    _errors.print(text, style="red", soft_wrap=True)
