"""The core works without contrib, and each folder of contrib can be deleted without harm to the others."""

import importlib.metadata
import shutil
from pathlib import Path

import pytest
from event_examples import HEIGHT, WIDTH, random_events
from test_architecture import NEEDS

from rvtssm.cli.verbs import VERBS
from rvtssm.readers.dat import write_dat

ROOT = Path(__file__).parents[1]
GROUPS = ("rvtssm.heads", "rvtssm.names", "rvtssm.precisions", "rvtssm.readers", "rvtssm.results", "rvtssm.verbs")
FOLDERS = sorted(path.name for path in (ROOT / "rvtssm/contrib").iterdir() if (path / "__init__.py").is_file())
CORE = (
    ["inspect", "a_td.dat", "out=inspected"],
    ["predict", "a_td.dat", "formats=[jsonl]", "out=boxes"],
    ["info", "model=tiny", "dataset=gen1"],
    ["doctor"],
)


def copied(folder: Path, *left_out: str) -> Path:
    """Return a copy of the package, with what is compiled of it, and its settings without these folders."""
    shutil.copytree(ROOT / "rvtssm", folder / "rvtssm", ignore=shutil.ignore_patterns(*left_out))
    shutil.copytree(ROOT / "configs", folder / "configs")
    return folder


def listed(shown: str) -> set[str]:
    """Return the verbs that --help lists."""
    return {line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2] != " "}


def test_the_core_works_without_contrib(tmp_path, run_afresh):
    folder = copied(tmp_path, "contrib")
    write_dat(folder / "a_td.dat", [random_events(2_000)], HEIGHT, WIDTH)
    words = "from rvtssm.cli.main import main\nassert main(['--help']) == 0\n"
    words += f"for words in {CORE!r}:\n    assert main(words) == 0, words\n"
    code, shown = run_afresh(words, folder)
    assert code == 0
    assert listed(shown[: shown.index("Files from strangers")]) == set(VERBS)
    assert (folder / "boxes/detections.jsonl").is_file()


ENTRIES = [entry for entry in importlib.metadata.distribution("rvtssm").entry_points if entry.group in GROUPS]


def needing(name: str) -> tuple[str, ...]:
    """The beginnings of the modules of a folder, and of those that need it."""
    others = [other for other, needed in NEEDS.items() if f"contrib.{name}" in needed]
    return tuple(f"rvtssm.contrib.{folder}." for folder in (name, *others))


def test_every_folder_offers_something():
    offering = {entry.value.split(".")[2] for entry in ENTRIES if entry.value.startswith("rvtssm.contrib.")}
    assert offering == {*FOLDERS}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_deleted_folder_takes_its_parts_with_it_and_no_others(name, tmp_path, run_afresh):
    """That no folder imports another one but those of NEEDS is shown by tests/test_architecture.py."""
    folder = copied(tmp_path)
    shutil.rmtree(folder / "rvtssm/contrib" / name)
    words = "from rvtssm.cli.main import main\nfrom rvtssm.system.extras import installed_parts\n"
    words += f"for group in {GROUPS}:\n    print(group, *sorted(installed_parts(group)))\nmain(['--help'])"
    code, shown = run_afresh(words, folder)
    assert code == 0
    left = [entry for entry in ENTRIES if not entry.value.startswith(needing(name))]
    for group, line in zip(GROUPS, shown.splitlines(), strict=False):
        assert line.split() == [group, *sorted(entry.name for entry in left if entry.group == group)]
    verbs = {entry.name.rpartition(".")[2] for entry in left if entry.group == "rvtssm.verbs"}
    assert listed(shown) == {*VERBS, *verbs}
