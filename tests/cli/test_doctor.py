"""`rvtssm doctor` finds what is broken, says so in its own row, and goes on."""

import importlib.metadata
import re
import sys

import pytest
import torch

from rvtssm.cli import doctor
from rvtssm.ssm import scan

NAMES = ("versions", "packages", "device", "recurrence", "forward pass", "filters", "video", "opencv", "camera")


def rows(text: str) -> dict[str, str]:
    """Name of a check -> its row, whose lines are joined."""
    lines = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    found: dict[str, str] = {}
    last = ""
    for mark, name, detail in lines:
        last = name.strip() or last
        found[last] = f"{found.get(last, mark.strip())} {detail.strip()}"
    return found


@pytest.fixture
def checked(monkeypatch, capsys):
    """A function: names of checks, or none for all -> the exit code of a doctor that has only these, and its rows."""

    def run(*names: str) -> tuple[int, dict[str, str]]:
        kept = tuple(check for check in doctor.CHECKS if not names or check.__name__.strip("_") in names)
        assert len(kept) == len(names or doctor.CHECKS)
        monkeypatch.setattr(doctor, "CHECKS", kept)
        return doctor.doctor(), rows(capsys.readouterr().out)

    return run


def test_a_working_installation_passes_every_check(checked):
    code, found = checked()
    assert code == 0 and tuple(found) == NAMES
    assert all(row.startswith("ok ") for row in found.values()), found
    for name in ("rvtssm", "torch"):
        assert f"{name} {importlib.metadata.version(name)}" in found["versions"]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    assert device in found["device"] and "tiny detector runs on" in found["forward pass"]


# the beginning of a program that cannot import a package
WITHOUT = """
import sys
for name in [*sys.modules, "{0}"]:
    if name.partition(".")[0] == "{0}":
        sys.modules[name] = None
from rvtssm.cli import doctor
from rvtssm.cli.main import main
"""


def test_without_torch_doctor_says_which_checks_need_it(run_afresh):
    code, shown = run_afresh(WITHOUT.format("torch") + "sys.exit(main(['doctor']))")
    found = rows(shown)
    works = {name for name, row in found.items() if row.startswith("ok ")}
    assert code == 2 and works == {"versions", "filters", "video", "opencv", "camera"}
    assert "torch" in found["packages"]


def test_doctor_imports_nothing_that_only_trainings_need(run_afresh):
    """Lightning alone takes longer than all checks."""
    code, shown = run_afresh(WITHOUT.format("lightning") + "sys.exit(main(['doctor']))")
    assert code == 0, shown


def test_without_hydra_the_other_checks_are_run(run_afresh):
    few = "doctor.CHECKS = doctor.CHECKS[:3]\n"
    code, shown = run_afresh(WITHOUT.format("hydra") + few + "sys.exit(main(['doctor']))")
    found = rows(shown)
    assert code == 2 and "hydra" in found["packages"]
    assert found["versions"].startswith("ok ") and found["device"].startswith("ok ")


@pytest.mark.parametrize("package", ["lightning", "rich"])
def test_a_package_that_is_too_old_fails_its_checks_only(monkeypatch, checked, package):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1" if name == package else version(name))
    code, found = checked("packages", "versions")
    assert code == 2 and found["packages"].startswith("broken ") and f"{package} 0.1" in found["packages"]
    assert found["versions"].startswith("ok ")


def test_filters_that_change_data_are_reported(monkeypatch, checked):
    monkeypatch.setattr("numpy.array_equal", lambda *arrays: False)
    code, found = checked("filters")
    assert code == 2 and "blosc, lz4, zstd gave other data than were written" in found["filters"]


def test_an_optional_package_may_be_missing(monkeypatch, checked):
    version = importlib.metadata.version
    assert version("onnx")

    def version_of(name: str) -> str:
        if name == "onnx":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    code, found = checked("packages")
    assert code == 0 and "onnx (for " in found["packages"].split("not installed: ")[1]


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        (None, "no connected camera"),
        (("Prophesee EVK4", "00051234", None), "Prophesee EVK4 00051234"),
        (("Prophesee EVK4", None, "Access denied"), r"Prophesee EVK4 \(Access denied\)"),
    ],
)
def test_connected_cameras_are_named(monkeypatch, checked, device, wanted):
    drivers = pytest.importorskip("neuromorphic_drivers")
    if device:
        name, serial, error = device
        device = drivers.ListedDevice(drivers.Name(name), drivers.Connection.USB_SUPER, "1", serial, error)
    monkeypatch.setattr(drivers, "list_devices", lambda: [device] if device else [])
    code, found = checked("camera")
    assert code == 0 and re.fullmatch(rf"ok neuromorphic-drivers [\d.]+ finds {wanted}", found["camera"])


def test_without_a_library_for_cameras_doctor_names_the_extra(monkeypatch, checked):
    monkeypatch.setitem(sys.modules, "neuromorphic_drivers", None)
    code, found = checked("camera")
    assert code == 0 and "`bash scripts/install.sh camera`" in found["camera"]


@pytest.mark.gpu
def test_doctor_runs_the_detector_on_the_gpu(checked):
    code, found = checked()
    assert code == 0 and "runs on cuda" in found["forward pass"]
    assert "scan_triton and the loop give" in found["recurrence"]


def test_states_that_are_not_those_of_the_formula_are_reported(checked, monkeypatch):
    original = scan.scan
    monkeypatch.setattr(scan, "scan", lambda *inputs: (1.1 * original(*inputs)[0], None))
    code, found = checked("recurrence")
    assert code == 2 and "states differ from the formula" in found["recurrence"]


def test_two_wheels_of_opencv_are_named(tmp_path, monkeypatch, checked):
    for name in ("opencv-python", "opencv-contrib-python-headless"):
        folder = tmp_path / f"{name.replace('-', '_')}-4.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, found = checked("opencv")
    assert code == 0 and "opencv-contrib-python-headless and opencv-python" in found["opencv"]
