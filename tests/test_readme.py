"""The tree in README.md is the tree on disk.

Under `## Files` stands a fenced block with one `folder/  purpose` per line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rvtssm import cli
from rvtssm.sweeps import compose_study
from rvtssm.verbs import VERBS

ROOT = Path(__file__).parents[1]


def tree_of_the_readme() -> dict[str, str]:
    """Path or pattern -> purpose, in the order of the page."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"^## Files\n.*?^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert block, "README.md has no fenced block under `## Files`"
    lines = [line for line in block.group(1).splitlines() if line.strip()]
    entries = [line.strip().split(maxsplit=1) for line in lines]
    assert all(len(entry) == 2 for entry in entries), "every line is a folder and its purpose"
    assert len({path for path, _ in entries}) == len(entries), "a path stands in the tree twice"
    return dict(entries)


def test_everything_in_the_tree_exists():
    for entry in tree_of_the_readme():
        on_disk = list(ROOT.glob(entry.rstrip("/")))
        assert on_disk, f"README.md lists {entry}, which is not there"
        assert not entry.endswith("/") or on_disk[0].is_dir(), f"{entry} is not a folder"


def test_every_room_is_in_the_tree():
    rooms = {path.parent.relative_to(ROOT).as_posix() + "/" for path in (ROOT / "rvtssm").rglob("__init__.py")}
    assert rooms <= set(tree_of_the_readme())


def commands() -> list[str]:
    """Every `rvtssm ...` in the fenced blocks of the pages that users read."""
    pages = [ROOT / "README.md", ROOT / "data_prep" / "README.md"]
    blocks = [block for page in pages for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.M | re.S)]
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    found = [match.group() for line in lines if (match := re.search(r"\brvtssm [a-z]+ .*", line))]
    assert len(found) > 15
    return found


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_pages_is_understood(command):
    """Its verb and its keys exist and take such values; options in brackets and paths are left out."""
    _, verb, *words = command.split()
    assert verb in VERBS
    words = [word for word in words if "=" in word and not word.startswith("[")]
    words = [cli._in_section(word, VERBS[verb].own) for word in words]
    compose_study(words) if verb == "study" else cli.compose(words)
