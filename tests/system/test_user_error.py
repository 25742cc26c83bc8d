"""A UserError says which mistake it is about, wherever it comes from."""

import ast
import doctest
import errno
import pickle
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from user_errors import raises

from rvtssm.cli.sweeps import _PLUGINS
from rvtssm.readers.header import UnknownSensorSize
from rvtssm.system import extras, user_error
from rvtssm.system.files import file_errors
from rvtssm.system.user_error import KINDS, UserError

PACKAGE = Path(user_error.__file__).parents[1]
CLASSES = {"UserError", "MessageError", "UnknownSensorSize"}


@pytest.mark.parametrize(
    ("kind", "name", "found", "needed", "line"),
    [
        ("setting.out_of_range", "steps", 0, "at least 1", "steps=0; at least 1"),
        ("setting.choice", "head", "yolo", ["yolox"], "head=yolo; choose from yolox"),
        ("setting.missing", "dataset.yaml", "does not give height", "", "dataset.yaml does not give height"),
        ("file.content", "a.csv", "line 3 has two numbers", "", "a.csv: line 3 has two numbers"),
        ("file.content", "a.csv", "has decimal commas", "", "a.csv has decimal commas"),
        ("setting.missing", "size", "", "the weights do not tell it", "size: the weights do not tell it"),
    ],
)
def test_a_line_joins_the_name_with_a_value_a_clause_or_a_verb(kind, name, found, needed, line):
    assert str(UserError(kind, name=name, found=found, needed=needed, advice="try again")) == f"{line}; try again"


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
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            if node.func.id == "file_errors":
                for key in [*node.args[4:5], *(each.value for each in node.keywords if each.arg == "key")]:
                    places[ast.literal_eval(key)].append(place)
            if node.func.id in CLASSES:
                key = node.args[0] if node.args else None
                if isinstance(key, ast.Constant):
                    places[str(key.value)].append(place)
                elif not ast.unparse(key or node).startswith(("error.key", "key")):
                    places[""].append(place)
    return places


def test_every_error_has_a_kind_of_the_table_and_every_kind_an_error():
    places = raised_keys()
    assert {key: where for key, where in places.items() if key not in KINDS} == {}
    assert KINDS.keys() == places.keys()


def test_the_kind_of_an_error_words_its_fields():
    choice = UserError("setting.choice", name="temporal.name", found="s9", needed=["s4", "s5", None])
    assert str(choice) == "temporal.name=s9; choose from s4, s5, null"
    cut = UserError("file.cut", name="drive.dat", found="the last event has 3 of 8 bytes")
    assert str(cut) == "drive.dat: the last event has 3 of 8 bytes; copy it again"
    own = UserError("file.cut", name="drive.dat", found="the header ends early", advice="record it again")
    assert str(own) == "drive.dat: the header ends early; record it again"


# errors of libraries and the disk


def test_an_error_of_a_library_names_the_file_and_what_to_do():
    with pytest.raises(UserError, match=r"^a\.h5 is damaged \(no such key\); copy it again$"), file_errors("a.h5"):
        raise LookupError("no such key")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN, errno.ENOLCK, errno.EIO])
def test_a_file_that_the_system_refuses_is_not_called_damaged(number):
    with pytest.raises(UserError) as error, file_errors("a.h5", advice="delete it and prepare it again"):
        raise OSError(number, "unable to lock file")
    assert "cannot be read" in str(error.value) and "delete" not in str(error.value)


def test_an_error_that_is_wrapped_keeps_its_key():
    with raises("prepared.damaged", "a.h5 is damaged (wrong frame); copy it again"), file_errors("a.h5"):
        raise UserError("prepared.damaged", "wrong frame")


# optional packages


ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "docs"}


def test_each_extra_has_a_line_that_names_it():
    calls = re.compile(r'check_extra\((?:[^()]|\([^()]*\))*?, "(\w+)", |extra="(\w+)"|needed_to_train = \("(\w+)"')
    sources = "\n".join(path.read_text() for path in (ROOT / "rvtssm").rglob("*.py"))
    named = {extra for groups in calls.findall(sources) for extra in groups if extra}
    assert named | {extra for extra, _ in _PLUGINS.values()} == PROJECT.keys() - FOR_DEVELOPERS


def test_the_line_names_the_package_as_it_is_installed(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ValueError, match=r"^a bag needs the package rerun-sdk; run `bash scripts/install.sh rerun`"):
        extras.check_extra("a bag", "rerun", "rerun")
    with pytest.raises(ValueError, match="ONNX needs the packages onnx, onnxscript; run"):
        extras.check_extra("ONNX", "export", "onnx", "onnxscript")


def test_a_module_below_a_package_that_is_missing_is_missing():
    assert extras.is_installed("json") and not extras.is_installed("hydra_no_plugins.hydra_joblib_launcher")


@pytest.mark.parametrize("word", _PLUGINS)
def test_a_launcher_or_sweeper_that_is_missing_names_its_extra(word, monkeypatch, refused):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    said = refused("train", "-m", word, "seed=0,1")
    assert f"{word} needs the package hydra-" in said and f"bash scripts/install.sh {_PLUGINS[word][0]}" in said
