"""Tests ask which mistake was refused, and leave its words free. One test of each room reads the words as well."""

import contextlib
from collections.abc import Iterator

import pytest

from rvtssm.system.user_error import UserError


@contextlib.contextmanager
def raises(key: str, about: str = "") -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with this key, about a setting, file or extra that its text names."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.key == key, f"{caught.value.key}: {caught.value}"
    assert about in caught.value.text
