"""Errors of libraries become one line that names the file; errors of the disk never advise to replace it."""

import errno

import pytest
from user_errors import raises

from rvtssm.system.files import file_errors
from rvtssm.system.user_error import UserError


def test_an_error_of_a_library_names_the_file_and_what_to_do():
    with pytest.raises(UserError, match=r"^a\.h5 is damaged \(no such key\); copy it again$"), file_errors("a.h5"):
        raise LookupError("no such key")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN, errno.ENOLCK, errno.EIO])
def test_a_file_that_the_system_refuses_is_not_called_damaged(number):
    with pytest.raises(UserError) as error, file_errors("a.h5", advice="delete it and prepare it again"):
        raise OSError(number, "unable to lock file")
    assert "cannot be read" in str(error.value) and "delete" not in str(error.value)


def test_an_error_that_is_wrapped_keeps_its_key():
    with raises("prepared.zstd", "a.h5 is damaged (wrong frame); copy it again"), file_errors("a.h5"):
        raise UserError("prepared.zstd", "wrong frame")
