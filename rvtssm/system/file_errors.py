"""Turn the errors that libraries raise for a damaged or hostile file into one line that names the file."""

import contextlib
import difflib
import errno
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from rvtssm.system.user_error import UserError

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


def did_you_mean(path: Path | str) -> str:
    """Return a question that names the file most like a missing one in its folder; empty if there is none."""
    path = Path(path)
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    found = difflib.get_close_matches(path.name, names, 1)
    return f"; did you mean {found[0]}?" if found else ""


@contextlib.contextmanager
def file_errors(
    path: Path | str,
    fault: str = " is damaged",
    advice: str = "copy it again",
    errors: tuple[type[Exception], ...] = FILE_ERRORS,
) -> Iterator[None]:
    """Raise UserError with the text "PATH FAULT (REASON); ADVICE" in place of errors of a library that reads `path`.

    A ValueError that starts with the path is one of this package and is passed on unchanged.

    Args:
        path: The file that is read.
        fault: What is wrong with it, with a leading space.
        advice: What the user should do.
        errors: The exceptions to replace.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
            advice = "check its permissions and its disk, then run again"
            raise UserError(f"{path} cannot be read ({os.strerror(error.errno)}); {advice}") from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{path}{fault} ({reason}); {advice}") from None
