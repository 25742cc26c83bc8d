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


def keep(monkeypatch, *names: str) -> None:
    """Leave only some of the checks."""
    kept = tuple(check for check in doctor.CHECKS if check.__name__.strip("_") in names)
    assert len(kept) == len(names)
    monkeypatch.setattr(doctor, "CHECKS", kept)


def test_a_working_installation_passes_every_check(capsys):
    assert doctor.doctor() == 0
    found = rows(capsys.readouterr().out)
    assert tuple(found) == NAMES
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


def test_without_hydra_the_other_checks_are_run(run_afresh):
    few = "doctor.CHECKS = doctor.CHECKS[:3]\n"
    code, shown = run_afresh(WITHOUT.format("hydra") + few + "sys.exit(main(['doctor']))")
    found = rows(shown)
    assert code == 2 and "hydra" in found["packages"]
    assert found["versions"].startswith("ok ") and found["device"].startswith("ok ")


def test_a_package_that_does_not_import_fails_its_checks_only(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    keep(monkeypatch, "packages", "versions")
    assert doctor.doctor() == 2
    found = rows(capsys.readouterr().out)
    assert found["packages"].startswith("broken ") and "timm" in found["packages"]
    assert found["versions"].startswith("ok ")


def test_filters_that_change_data_are_reported(monkeypatch, capsys):
    monkeypatch.setattr("numpy.array_equal", lambda *arrays: False)
    keep(monkeypatch, "filters")
    assert doctor.doctor() == 2
    assert "blosc, lz4, zstd gave other data than were written" in rows(capsys.readouterr().out)["filters"]


def test_an_optional_package_may_be_missing(monkeypatch, capsys):
    version = importlib.metadata.version
    assert version("onnx")

    def found(name: str) -> str:
        if name == "onnx":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", found)
    keep(monkeypatch, "packages")
    assert doctor.doctor() == 0
    assert "onnx (for " in rows(capsys.readouterr().out)["packages"].split("not installed: ")[1]


@pytest.mark.parametrize(
    ("device", "found"),
    [
        (None, "no connected camera"),
        (("Prophesee EVK4", "00051234", None), "Prophesee EVK4 00051234"),
        (("Prophesee EVK4", None, "Access denied"), r"Prophesee EVK4 \(Access denied\)"),
    ],
)
def test_connected_cameras_are_named(monkeypatch, capsys, device, found):
    drivers = pytest.importorskip("neuromorphic_drivers")
    if device:
        name, serial, error = device
        device = drivers.ListedDevice(drivers.Name(name), drivers.Connection.USB_SUPER, "1", serial, error)
    monkeypatch.setattr(drivers, "list_devices", lambda: [device] if device else [])
    keep(monkeypatch, "camera")
    assert doctor.doctor() == 0
    assert re.fullmatch(rf"ok neuromorphic-drivers [\d.]+ finds {found}", rows(capsys.readouterr().out)["camera"])


def test_without_a_library_for_cameras_doctor_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "neuromorphic_drivers", None)
    keep(monkeypatch, "camera")
    assert doctor.doctor() == 0
    assert "`bash scripts/install.sh camera`" in rows(capsys.readouterr().out)["camera"]


@pytest.mark.gpu
def test_doctor_runs_the_detector_on_the_gpu(capsys):
    assert doctor.doctor() == 0
    found = rows(capsys.readouterr().out)
    assert "runs on cuda" in found["forward pass"] and "scan_triton and the loop give" in found["recurrence"]


def test_states_that_are_not_those_of_the_formula_are_reported(capsys, monkeypatch):
    original = scan.scan
    monkeypatch.setattr(scan, "scan", lambda *inputs: (1.1 * original(*inputs)[0], None))
    keep(monkeypatch, "recurrence")
    assert doctor.doctor() == 2
    assert "states differ from the formula" in rows(capsys.readouterr().out)["recurrence"]


def test_two_wheels_of_opencv_are_named(tmp_path, monkeypatch, capsys):
    for name in ("opencv-python", "opencv-contrib-python-headless"):
        folder = tmp_path / f"{name.replace('-', '_')}-4.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    keep(monkeypatch, "opencv")
    assert doctor.doctor() == 0
    assert "opencv-contrib-python-headless and opencv-python" in rows(capsys.readouterr().out)["opencv"]
