"""Run the examples, and write each as a page of docs/notebooks with its outputs and pictures.

python scripts/notebook_pages.py            # all of them, in some minutes
python scripts/notebook_pages.py NAME ...   # some, such as first_video

Examples are programs whose cells begin with `# %%`, which Jupyter (with jupytext) and most editors open as notebooks.
The files that it writes go to a temporary folder.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.read_text().startswith("# %%")]
PAGES = ROOT / "docs" / "notebooks"
_MARK = "# %%"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Cell(NamedTuple):
    """A cell: prose in Markdown, or a program."""

    is_prose: bool
    text: str


def cells(notebook: Path) -> list[Cell]:
    """Return the cells of a notebook in the percent format."""
    listed = []
    for part in re.split(rf"^{_MARK}", notebook.read_text(), flags=re.M)[1:]:
        mark, _, text = part.partition("\n")
        is_prose = mark.strip() == "[markdown]"
        if is_prose:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        listed.append(Cell(is_prose, text.strip()))
    return listed


def outputs(notebook: Path) -> Iterator[tuple[Cell, str, Any]]:
    """Yield every cell with what it printed and the value of its last expression, as a notebook shows them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(notebook):
        printed, value = io.StringIO(), None
        if not cell.is_prose:
            tree = ast.parse(cell.text)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                exec(compile(tree, notebook.name, "exec"), names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
        yield cell, printed.getvalue(), value


def page_of(notebook: Path) -> Path:
    return PAGES / f"{notebook.stem}.md"


def programs(page: str) -> list[str]:
    """Return the programs on a page that `write_page` wrote."""
    return re.findall(r"^```python\n(.*?)\n```$", page, re.M | re.S)


def write_page(notebook: Path) -> None:
    """Run an example, and write its page and its pictures."""
    lines: list[str] = []
    shown = list(outputs(notebook))  # all of it, before a picture is replaced
    for old in PAGES.glob(f"{notebook.stem}_*.png"):
        if old.stem.removeprefix(f"{notebook.stem}_").isdigit():
            old.unlink()
    for number, (cell, printed, value) in enumerate(shown):
        if cell.is_prose:
            lines += [cell.text, ""]
            continue
        lines += ["```python", cell.text, "```", ""]
        if text := _ANSI.sub("", printed).strip():
            lines += ["```text", "\n".join(line.rstrip() for line in text.splitlines()), "```", ""]
        lines += _shown(value, PAGES / f"{notebook.stem}_{number}.png")
    lines += [f"This page is `examples/{notebook.name}` with what it printed and showed on a busy machine.", ""]
    page_of(notebook).write_text("\n".join(lines))


def _shown(value: Any, picture: Path) -> list[str]:
    """Return the lines that show the value of a cell, as a notebook does."""
    if value is None:
        return []
    if isinstance(value, Image.Image):
        value.thumbnail((1400, 1400))
        value.save(picture, optimize=True)
    elif hasattr(value, "_repr_html_"):
        return [value._repr_html_(), ""]
    else:
        return ["```text", repr(value), "```", ""]
    return [f"![output of this program]({picture.name})", ""]


if __name__ == "__main__":
    by_name = {path.stem: path for path in NOTEBOOKS}
    if unknown := set(sys.argv[1:]) - set(by_name):
        sys.exit(f"there is no example {', '.join(sorted(unknown))}; choose from {', '.join(by_name)}")
    chosen = [by_name[name] for name in sys.argv[1:] or by_name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for path in chosen:
            write_page(path)
            print(f"wrote {page_of(path)}")
