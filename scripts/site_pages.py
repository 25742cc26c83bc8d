"""Write the sources of the site into a folder: pages of docs/, pages from elsewhere, and pages made from the code.

python scripts/site_pages.py outputs/pages

`zensical.toml` names the pages in their order. Links between pages are those of the repository, so that they work in
both places.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rvtssm.cli.composition import short_keys
from rvtssm.cli.config import Config
from rvtssm.cli.help import Key, keys_of, purpose, sections
from rvtssm.cli.verbs import SAFE_FORMATS, verbs
from rvtssm.system.user_error import KINDS

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "data_prep/README.md": "data.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/any_rate/README.md": "rate_study.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
}
MADE = ("commands.md", "keys.md", "files.md", "recipes.md", "errors.md")  # from the code
IN_DOCS = (*ROOT.glob("docs/*.md"), *ROOT.glob("docs/notebooks/*.md"))
PAGES = {**{path.relative_to(ROOT).as_posix(): path.name for path in IN_DOCS}, **ELSEWHERE}
LINK = re.compile(r"(!?\[[^\[\]]*\]\()([^)\s#:]+)(#[^)\s]*)?\)")


def site_page(path: str, folder: Path) -> str:
    """Return a page with its links as they are in the site; pictures that it shows are copied to the folder."""

    def replaced(match: re.Match[str]) -> str:
        target = os.path.normpath((ROOT / path).parent / match[2])
        name = Path(target).relative_to(ROOT).as_posix()
        page = PAGES.get(name) or name.removeprefix("docs/")
        if page in (*PAGES.values(), *MADE):
            return f"{match[1]}{page}{match[3] or ''})"
        if not match[1].startswith("!") or not Path(target).is_file():
            raise ValueError(f"{path} links to {match[2]}, which is no page of the site; name it without a link")
        copied = folder / "assets" / Path(target).name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copied)
        return f"{match[1]}assets/{copied.name})"

    return LINK.sub(replaced, (ROOT / path).read_text())


def commands_page() -> str:
    """Return all verbs, and all settings by section with their defaults."""
    lines = ["# Commands and settings", "", "`rvtssm VERB --help` prints the settings of one verb.", ""]
    lines += [SAFE_FORMATS, "", "## Verbs", ""]
    for name, verb in verbs().items():
        reads = ", ".join(f"[`{section}`](#{section})" for section in verb.reads)
        lines += [f"### rvtssm {name}", "", f"{_plain(verb.meaning[0].upper() + verb.meaning[1:])}.", ""]
        lines += ["```", f"rvtssm {name} {verb.example}".rstrip(), "```", "", f"It reads {reads}.\n" if reads else ""]
    lines += ["## Settings outside of sections", "", *_table(key for key in keys_of(Config()) if "." not in key.name)]
    for section, settings in sorted(sections().items()):
        lines += ["", f"## {section}", "", f"{_plain(purpose(settings))}.", ""]
        lines += _table(keys_of(settings, f"{section}."))
    return "\n".join(lines)


def keys_page() -> str:
    """Return a table of the keys that need no section: what each is called in full, by verb."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for verb in verbs():
        for key, name in short_keys(verb).items():
            by_key.setdefault(key, {}).setdefault(name, []).append(verb)
    lines = [
        "# Keys by verb",
        "",
        "A verb takes these keys as they stand here, as in `rvtssm predict FILE hz=100`. Files of settings use the "
        "full names, which [Commands and settings](commands.md) describes. The second table says which key a path is "
        "that stands without one.",
        "",
        "| key | verbs | full name |",
        "|---|---|---|",
    ]
    for key, names in sorted(by_key.items()):
        lines += [f"| `{key}` | {', '.join(readers)} | `{name}` |" for name, readers in names.items()]
    lines += ["", "| verb | a path that stands alone is |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | `{verb.bare}` |" for name, verb in verbs().items() if verb.bare)])


def files_page() -> str:
    """Return every file of the package with the first line of its docstring."""
    lines = ["# All files", "", "Each file says in its first line what it is for. This list is made from those lines."]
    for folder in sorted({path.parent for path in (ROOT / "rvtssm").rglob("*.py")}):
        lines += ["", f"## {folder.relative_to(ROOT)}", "", "| file | what it is for |", "|---|---|"]
        lines += [f"| `{path.name}` | {_plain(first_line(path))} |" for path in sorted(folder.glob("*.py"))]
    return "\n".join(lines)


def recipes_page() -> str:
    """Return the comments at the head of every recipe."""
    lines = ["# Recipes", "", "`rvtssm train experiment=NAME` takes one of these files."]
    for path in sorted((ROOT / "configs" / "experiment").glob("*.yaml")):
        comments = [line for line in path.read_text().splitlines() if line.startswith("# ") and "@package" not in line]
        lines += ["", f"## {path.stem}", "", *(f"{line[2:]}  " for line in comments)]
    return "\n".join(lines)


def errors_page() -> str:
    """Return all kinds of errors that a program can tell apart, by subject."""
    lines = [
        "# Errors by kind",
        "",
        "A mistake that you can correct raises `rvtssm.UserError`, on the command line as one line. A program asks for "
        "`error.key`, which is one of these kinds; the text may change.",
    ]
    subject = ""
    for key, kind in sorted(KINDS.items()):
        if key.partition(".")[0] != subject:
            subject = key.partition(".")[0]
            lines += ["", f"## {subject}", "", "| kind | meaning | usual advice |", "|---|---|---|"]
        lines.append(f"| `{key}` | {_plain(kind.meaning)} | {_plain(kind.advice)} |")
    return "\n".join(lines)


def reference_page(room: Path) -> str:
    """Return a page of the API reference: all modules of a folder, whose docstrings the site fills in."""
    modules = sorted(path for path in room.rglob("*.py") if path.stem != "__init__")
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in modules]
    return "\n".join(
        [f"# rvtssm.{room.name}", "", first_line(room / "__init__.py"), "", *(f"::: {n}\n" for n in names)]
    )


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")


def write_pages(folder: Path) -> None:
    """Replace a folder. Raise ValueError if it holds anything but the pages of an earlier run."""
    if folder.exists() and any(folder.iterdir()) and not all((folder / name).is_file() for name in MADE):
        raise ValueError(f"{folder} holds other files than the pages of the site; name an empty folder or a new one")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "api").mkdir(parents=True)
    texts = {name: site_page(path, folder) for path, name in PAGES.items()}
    texts |= zip(MADE, (commands_page(), keys_page(), files_page(), recipes_page(), errors_page()), strict=True)
    for room in sorted(path.parent for path in (ROOT / "rvtssm").glob("*/__init__.py")):
        texts[f"api/{room.name}.md"] = reference_page(room)
    for name, text in texts.items():
        (folder / name).write_text(text)


def _table(keys: Iterator[Key]) -> list[str]:
    rows = [f"| `{key.name}` | `{key.default}` | {_plain(key.meaning)} |" for key in keys]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


def _plain(text: str) -> str:
    """Return text in which nothing outside of code is taken for a link, a tag or the border of a table."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("[", "&#91;").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
