"""Turns what libraries raise for a damaged or hostile file into one line that names the file."""

import contextlib
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from rvtssm.system.user_error import UserError

# what numpy, h5py and the readers of compressed files raise for a damaged file; RuntimeError includes RecursionError,
# SyntaxError and TokenError are those of numpy for a damaged header
FILE_ERRORS = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
# and what follows where values of a file are of other kinds than they should be
CONTENT_ERRORS = (*FILE_ERRORS, TypeError, AttributeError)


@contextlib.contextmanager
def file_errors(
    path: Path | str,
    fault: str = " is damaged",
    advice: str = "copy it again",
    errors: tuple[type[Exception], ...] = FILE_ERRORS,
) -> Iterator[None]:
    """Raise a ValueError, "PATH FAULT (REASON); ADVICE", instead of any of the errors of a library that reads `path`.

    A ValueError that begins with the path is one of ours, so it stays as it is.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{path}{fault} ({reason}); {advice}") from None
