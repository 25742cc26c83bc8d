"""The error for mistakes that a user can make and correct."""

from collections.abc import Iterator
from contextlib import contextmanager

from rvtssm.system.kinds import worded


class UserError(ValueError):
    """A mistake that the user can correct. The text says what was found, what is needed and what to do.

    The command line prints the text as one line. Any other exception is a bug of this package and keeps its traceback.

    A program asks for the key, because the text may change:

    >>> import rvtssm
    >>> try:
    ...     rvtssm.open("drive.raw")
    ... except rvtssm.UserError as error:
    ...     if error.key == "file.missing":
    ...         print(error)
    drive.raw does not exist; give an event recording

    Args:
        key: The kind of the mistake, one of `rvtssm.system.kinds.KINDS`.
        text: The whole text. Without it, the fields are worded by their kind.
        name: The setting, file or place that the error is about.
        found: The value of a setting, or a clause on what is wrong.
        needed: A list of choices, or a clause on what is needed.
        advice: What to do, if it is not the usual advice of the kind.
    """

    def __init__(
        self, key: str, text: str = "", *, name: object = "", found: object = "", needed: object = "", advice: str = ""
    ) -> None:
        text = text or worded(key, name, found, needed, advice)
        super().__init__(key, text)  # both are arguments, so that an error from another process keeps its key
        self.key = key
        self.text = text

    def __str__(self) -> str:
        return self.text


def in_one_line(error: BaseException) -> str:
    """Return the text of an error on one line; the name of its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def key_of(error: Exception, otherwise: str) -> str:
    """Return the key of an error that another one wraps; `otherwise` if it has none."""
    return error.key if isinstance(error, UserError) else otherwise


@contextmanager
def errors_about(what: object, advice: str = "") -> Iterator[None]:
    """Put a file or a setting before the text of a UserError, which does not know where its values come from.

    Args:
        what: The file or the setting.
        advice: What else to do about the error.
    """
    try:
        yield
    except UserError as error:
        text = "; ".join(filter(None, [f"{what}: {error}", advice]))
        raise UserError(error.key, text) from None
