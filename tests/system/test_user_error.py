"""A UserError says which mistake it is about, wherever it comes from."""

import doctest
import pickle
from pathlib import Path

from rvtssm.readers.header import UnknownSensorSize
from rvtssm.system import user_error
from rvtssm.system.user_error import UserError

PACKAGE = Path(user_error.__file__).parents[1]


def test_an_error_from_another_process_keeps_key_text_and_class():
    for error in (UserError("seed.unlucky", "seed=13; give another"), UnknownSensorSize("seed.unlucky", "no size")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.key, str(copy)) == (type(error), error.key, error.text)


def test_the_example_of_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(user_error).failed == 0
