"""The tree in README.md is the tree on disk.

Under `## Files` stands a fenced block with one `path  purpose` per line; a path may be a pattern (`configs/*/*.yaml`).
"""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from rvtssm import cli

ROOT = Path(__file__).parents[1]
FOLDERS = ("rvtssm", "scripts", "data_prep", "configs")


def files_of_the_checkout() -> list[str]:
    """Paths of the files in FOLDERS: what git tracks or would track; in an image without git, what lies there."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        return sorted({path for path in listed if (ROOT / path).is_file()})
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts)


def tree_of_the_readme() -> dict[str, str]:
    """Path or pattern -> purpose, in the order of the page."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"^## Files\n.*?^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert block, "README.md has no fenced block under `## Files`"
    lines = [line for line in block.group(1).splitlines() if line.strip()]
    entries = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines]
    assert all(len(entry) == 2 for entry in entries), "every line is a path, two spaces or more, and a purpose"
    assert len({path for path, _ in entries}) == len(entries), "a path stands in the tree twice"
    return dict(entries)


FILES = files_of_the_checkout()


def matches(path: str, entry: str) -> bool:
    """Whether an entry covers a file: by its path, or by a pattern whose * stays within one folder."""
    return path.count("/") == entry.count("/") and fnmatch(path, entry)


def test_everything_in_the_tree_exists():
    for entry in tree_of_the_readme():
        on_disk = list(ROOT.glob(entry.rstrip("/")))
        assert on_disk, f"README.md lists {entry}, which is not there"
        assert not entry.endswith("/") or on_disk[0].is_dir(), f"{entry} is not a folder"


@pytest.mark.parametrize("path", [path for path in FILES if Path(path).name != "__init__.py"])
def test_every_file_is_in_the_tree(path: str):
    entries = tree_of_the_readme()
    assert any(matches(path, entry) for entry in entries), f"{path} is missing under `## Files` of README.md"


def test_modules_are_listed_one_by_one():
    patterns = [entry for entry in tree_of_the_readme() if entry.startswith("rvtssm/") and "*" in entry]
    assert not patterns, "a pattern says nothing of what each module is for"


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
    assert verb in cli.VERBS
    words = [word for word in words if "=" in word and not word.startswith("[")]
    cli.compose([cli._in_section(word, cli.SECTIONS.get(verb)) for word in words])
