"""A UserError says which mistake it is about, wherever it comes from."""

import ast
import doctest
import pickle
import re
from collections import defaultdict
from pathlib import Path

from rvtssm.readers.header import UnknownSensorSize
from rvtssm.system import user_error
from rvtssm.system.user_error import UserError

PACKAGE = Path(user_error.__file__).parents[1]
KINDS = {"UserError", "MessageError", "UnknownSensorSize"}


def test_an_error_from_another_process_keeps_key_text_and_class():
    for error in (UserError("seed.unlucky", "seed=13; give another"), UnknownSensorSize("seed.unlucky", "no size")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.key, str(copy)) == (type(error), error.key, error.text)


def test_the_example_of_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(user_error).failed == 0


def raised_keys() -> dict[str, list[str]]:
    """Key -> the places that raise it; the key of a wrapped error or of an argument counts for none."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                key = node.args[0] if len(node.args) == 2 else None
                if isinstance(key, ast.Constant):
                    places[str(key.value)].append(place)
                elif not ast.unparse(key or node).startswith(("error.key", "key")):
                    places[""].append(place)
    return places


def test_every_error_has_a_key_of_a_subject_and_a_mistake():
    places = raised_keys()
    assert len(places) > 400
    assert {key: where for key, where in places.items() if not re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", key)} == {}
