"""The core works without contrib, and each folder of contrib can be deleted without harm to the others."""

import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest

from rvtssm.cli.verbs import VERBS
from rvtssm.system.extras import installed_parts

ROOT = Path(__file__).parents[1]
GROUPS = ("rvtssm.verbs", "rvtssm.readers", "rvtssm.simulated")
FOLDERS = sorted(path.name for path in (ROOT / "rvtssm/contrib").iterdir() if (path / "__init__.py").is_file())
CORE = (
    [
        "generate",
        "dataset=synthetic",
        "dataset.raw_dir=raw",
        "num_train=1",
        "num_val=0",
        "num_test=0",
        "duration_s=0.2",
    ],
    ["inspect", "raw/train/train_0000_td.dat", "out=inspected"],
    ["predict", "raw/train/train_0000_td.dat", "formats=[jsonl]", "out=boxes"],
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
    words = "from rvtssm.cli.main import main\nassert main(['--help']) == 0\n"
    words += f"for words in {CORE!r}:\n    assert main(words) == 0, words\n"
    code, shown = run_afresh(words, folder)
    assert code == 0
    assert listed(shown[: shown.index("Files from strangers")]) == set(VERBS)
    assert (folder / "boxes/detections.jsonl").is_file()


def test_the_verbs_of_contrib_are_installed():
    assert {"audit", "convert", "label", "serve", "simulate", "study"} <= installed_parts("rvtssm.verbs").keys()


ENTRIES = [entry for entry in importlib.metadata.distribution("rvtssm").entry_points if entry.group in GROUPS]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_deleted_folder_takes_its_parts_with_it_and_no_others(name, tmp_path, run_afresh):
    folder = copied(tmp_path)
    shutil.rmtree(folder / "rvtssm/contrib" / name)
    words = "import json\nfrom rvtssm.system.extras import installed_parts\n"
    words += f"print(json.dumps({{group: sorted(installed_parts(group)) for group in {GROUPS}}}))"
    code, shown = run_afresh(words, folder)
    assert code == 0
    gone = (f"rvtssm.contrib.{name}.",)
    left = {
        group: sorted(entry.name for entry in ENTRIES if entry.group == group and not entry.value.startswith(gone))
        for group in GROUPS
    }
    assert json.loads(shown) == left


@pytest.mark.parametrize("name", FOLDERS)
def test_a_deleted_folder_takes_its_verbs_with_it_and_no_others(name, tmp_path, run_afresh):
    """That no folder imports another one is shown by tests/test_architecture.py."""
    own = {verb for verb, part in installed_parts("rvtssm.verbs").items() if f".{name}." in part.work} - VERBS.keys()
    folder = copied(tmp_path)
    shutil.rmtree(folder / "rvtssm/contrib" / name)
    code, shown = run_afresh("from rvtssm.cli.main import main\nmain(['--help'])", folder)
    assert code == 0
    assert listed(shown) == {*VERBS, *installed_parts("rvtssm.verbs")} - own
