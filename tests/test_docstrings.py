"""Every public name has a snippet in its docstring that runs, in a folder with a small simulated data set."""

import contextlib
import doctest
import io
import os

import numpy as np
import pytest
import torch

import rvtssm
from rvtssm.system.extras import installed_parts

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MISSION = ("generate", "train")  # what the other snippets read: a folder `street`, and weights in `run`


def snippet_of(name: str) -> doctest.DocTest:
    """The examples in the docstring of a public name; of a class not those of its methods."""
    text = getattr(rvtssm, name).__doc__ or ""
    return doctest.DocTestParser().get_doctest(text, {"rvtssm": rvtssm, "np": np, "torch": torch}, name, None, 0)


def run(name: str) -> str:
    """Run a snippet, and return what differs from what it says."""
    told = io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(snippet_of(name), out=told.write)
    return told.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the snippets of MISSION have run."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("snippets"))
    with contextlib.redirect_stdout(io.StringIO()):
        failures = [run(name) for name in MISSION]
    yield failures
    os.chdir(before)


@pytest.mark.parametrize("name", sorted({*rvtssm.__all__, *installed_parts("rvtssm.names")} - {"__version__"}))
def test_a_public_name_has_a_snippet_that_runs(name, folder):
    if name in MISSION:
        assert folder[MISSION.index(name)] == ""
    else:
        assert snippet_of(name).examples, f"the docstring of rvtssm.{name} has no snippet"
        assert run(name) == ""
