"""Tests ask which mistake was refused, and leave its words free."""

import contextlib
from collections.abc import Iterator

import pytest

from rvtssm.system.user_error import UserError


@contextlib.contextmanager
def raises(key: str) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with this key."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.key == key, f"{caught.value.key}: {caught.value}"
