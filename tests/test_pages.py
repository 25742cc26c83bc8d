"""The pages for users: commands are understood, links lead to pages, and the generated pages leave nothing out."""

import importlib
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rvtssm.cli import main as cli
from rvtssm.cli.composition import full_words
from rvtssm.cli.config import Config
from rvtssm.cli.help import keys_of, sections
from rvtssm.cli.verbs import verbs
from rvtssm.contrib.studies.grid import compose_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "data_prep/README.md", *sorted((ROOT / "docs").glob("*.md"))]
SITE = runpy.run_path(str(ROOT / "scripts/site_pages.py"))
NOTEBOOKS = runpy.run_path(str(ROOT / "scripts/notebook_pages.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder with the sources of the site."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    SITE["write_pages"](folder)
    return folder


TEXTS = [path for path in sorted(ROOT.rglob("*.md")) if not {".venv", "outputs", "templates"} & {*path.parts}]


def sections_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as forges and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_checkout_lead_somewhere(page):
    """To a file or a folder, and to a heading if they name one. Addresses on the web are left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, section = target.partition("#")
        file = page.parent / path if path else page
        if ":" not in path and not (file.exists() and (not section or section in sections_of(file))):
            dead.append(target)
    assert dead == []


def commands() -> list[str]:
    """Every `rvtssm ...` in the fenced blocks of the pages, except those whose words are all in another one."""
    text = "\n".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"^```(.*?)\n(.*?)^```$", text, re.M | re.S)
    lines = [line.split("  #")[0] for kind, block in blocks if not kind for line in block.splitlines()]
    found = [match.group().strip() for line in lines if (match := re.search(r"\brvtssm [a-z]+ .*", line))]
    assert len(found) > 30
    words = {command: set(command.split()) for command in found}
    return sorted(command for command in words if not any(words[command] < other for other in words.values()))


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_pages_is_understood(command):
    """Its verb and its keys exist and take such values; options in brackets and variables of the shell are left out."""
    _, verb, *words = shlex.split(command.partition(";")[0])
    assert verb in verbs()
    words = [re.sub("init_from=.*", "init_from=street-tiny", word) for word in words]  # settings are those of weights
    words = [re.sub("^seed=0,.*", "seed=0", word) for word in words]  # another seed changes nothing else
    words = [word for word in words if not word.startswith(("[", "--")) and "$" not in word]
    words = words if verbs()[verb].bare else [word for word in words if "=" in word]
    in_sections = full_words(verb, words)
    compose_study(in_sections) if verb == "study" or "--multirun" in command else cli.compose(in_sections, verb)


def test_a_script_that_a_page_starts_exists():
    named = {name for page in PAGES for name in re.findall(r"^\w+ (scripts/\w+\.\w+)", page.read_text(), re.M)}
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_site_has_every_page_once_and_all_lead_somewhere(site):
    """Writing the pages raises an error for a link or a picture without a target."""

    def names(entry: str | list[dict]) -> list[str]:
        return [entry] if isinstance(entry, str) else [name for part in entry for name in names(*part.values())]

    listed = names(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert sorted(listed) == sorted(path.relative_to(site).as_posix() for path in site.rglob("*.md"))


def test_code_on_pages_is_that_of_the_files():
    """A page has the whole file: nothing on the way to a reader, such as a forge, includes others."""
    named = re.findall(r"<!-- the file (\S+) -->\n```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)
    assert {name for name, code in named if code == (ROOT / name).read_text()} == {name for name, _ in named}
    assert len(named) == 2 and not [page for page in PAGES if "--8<--" in page.read_text()]


def test_links_are_those_of_the_site(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    page, picture = tmp_path / "docs/a.md", tmp_path / "docs/b.png"
    picture.write_bytes(b"png")
    names = SITE["site_page"].__globals__
    monkeypatch.setitem(names, "ROOT", tmp_path)
    monkeypatch.setitem(names, "PAGES", {"docs/a.md": "a.md", "data/README.md": "data.md"})
    page.write_text("[0, 1) [x\n x](../data/README.md#part) [y](#here) ![z](b.png) [w](https://example.org/README.md)")
    wanted = "[0, 1) [x\n x](data.md#part) [y](#here) ![z](assets/b.png) [w](https://example.org/README.md)"
    assert SITE["site_page"]("docs/a.md", tmp_path / "out") == wanted
    assert (tmp_path / "out/assets/b.png").read_bytes() == b"png"
    for link in ("[x](missing.md)", "[x](b.png)", "![x](missing.png)"):
        page.write_text(link)
        with pytest.raises(ValueError, match="no page of the site"):
            SITE["site_page"]("docs/a.md", tmp_path / "out")


@pytest.mark.parametrize("notebook", NOTEBOOKS["NOTEBOOKS"], ids=lambda path: path.stem)
def test_the_page_of_a_notebook_has_its_programs_and_prose(notebook):
    """They run in tests/cli/test_end_to_end.py; scripts/notebook_pages.py writes the page again after a change."""
    cells, page = NOTEBOOKS["cells"](notebook), NOTEBOOKS["page_of"](notebook).read_text()
    assert NOTEBOOKS["programs"](page) == [cell.text for cell in cells if not cell.is_prose]
    assert [cell.text for cell in cells if cell.is_prose and cell.text not in page] == []


def all_keys() -> list[str]:
    keys = [key.name for key in keys_of(Config()) if "." not in key.name]
    return keys + [key.name for name, section in sections().items() for key in keys_of(section, f"{name}.")]


def test_every_verb_and_key_is_on_the_page_of_commands(site):
    page = (site / "commands.md").read_text()
    keys = all_keys()
    assert len(keys) > 100
    assert [key for key in keys if f"| `{key}` |" not in page] == []
    assert [verb for verb in verbs() if f"### rvtssm {verb}\n" not in page] == []


def test_a_verb_or_a_key_that_the_search_lacks_is_named():
    not_found = runpy.run_path(str(ROOT / "scripts/site_search.py"))["not_found"]
    keys = "".join(f"<code>{key}</code>" for key in all_keys())
    index = [{"title": f"rvtssm {verb}", "location": f"commands.html#{verb}", "text": keys} for verb in verbs()]
    assert not_found(index) == []
    assert not_found(index[1:]) == [f"rvtssm {next(iter(verbs()))}"]
    less = [{**item, "text": keys.replace("<code>windows.stride_ms</code>", "")} for item in index]
    assert not_found(less) == ["windows.stride_ms"]


def test_the_pages_replace_no_folder_of_other_files(site, tmp_path):
    (tmp_path / "thesis.md").write_text("")
    with pytest.raises(ValueError, match="holds other files than the pages"):
        SITE["write_pages"](tmp_path)
    assert (tmp_path / "thesis.md").exists()
    (site / "old.md").write_text("")
    SITE["write_pages"](site)
    assert not (site / "old.md").exists()


# the tour


PAGE = (ROOT / "docs" / "tour.md").read_text()


def names() -> list[str]:
    """The dotted names that begin with the package."""
    return sorted(set(re.findall(r"`(rvtssm(?:\.\w+)+)`", PAGE)))


def exists(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute, None)
        return found is not None
    return False


def test_the_names_of_the_tour_exist():
    assert [name for name in names() if not exists(name)] == []


def test_the_files_of_the_tour_exist():
    paths = re.findall(r"`((?:rvtssm|tests)/[\w/]+(?:\.py)?)/?`", PAGE)
    assert len(names()) > 25 and len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
