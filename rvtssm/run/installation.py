"""Examines an installation: what `rvtssm doctor` prints, one check per thing that a run needs."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

# distributions whose module has another name
MODULES = {"hydra-core": "hydra", "opencv-python-headless": "cv2", "pyyaml": "yaml"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing examined. `detail` is what was found, or what is wrong and what to do."""

    name: str
    ok: bool
    detail: str


def examine(folder: Path | None = None) -> list[Check]:
    """Every check, in the order of a run; none raises. `folder`: where a run would write (default: where we are)."""
    here = Path.cwd() if folder is None else folder
    return [
        _check("python", _python),
        *_packages(),
        _check("gpu", _gpu),
        _check("HDF5 filters", _hdf5_filters),
        _check("event kernels", _event_kernels),
        _check("write access", lambda: _write_access(here)),
        _check("video", _video),
        _check("forward pass", _forward_pass),
    ]


def _check(name: str, found: Callable[[], str]) -> Check:
    try:
        return Check(name, True, found())
    except Exception as error:  # a broken library may raise anything, and the other checks still matter
        message = " ".join(str(error).split())
        return Check(name, False, f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _python() -> str:
    wanted = SpecifierSet(importlib.metadata.metadata("rvtssm")["Requires-Python"])
    if not wanted.contains(platform.python_version(), prereleases=True):
        raise RuntimeError(f"found {platform.python_version()}, needed is {wanted}")
    return f"{platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores"


def _packages() -> list[Check]:
    """One check for each package that ours declares: it imports, and its version is one that is allowed."""
    try:
        declared = importlib.metadata.requires("rvtssm") or []
    except importlib.metadata.PackageNotFoundError:
        return [Check("rvtssm", False, "not installed in this Python; `bash scripts/install.sh` or `pip install -e .`")]
    requirements = [Requirement(line) for line in declared]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    checks = [_check(r.name, partial(_package, r)) for r in needed]
    return [Check("rvtssm", True, importlib.metadata.version("rvtssm")), *checks]


def _package(requirement: Requirement) -> str:
    importlib.import_module(MODULES.get(requirement.name, requirement.name))
    found = importlib.metadata.version(requirement.name)
    if not requirement.specifier.contains(found, prereleases=True):
        raise RuntimeError(f"found {found}, needed is {requirement.specifier}; `pip install '{requirement}'`")
    return found


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none, runs on the CPU"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{device.name} ({device.total_memory / 2**30:.0f} GiB)" for device in devices)


def _hdf5_filters() -> str:
    import h5py
    import hdf5plugin

    written = np.arange(2 * 20 * 16 * 16, dtype=np.uint8).reshape(2, 20, 16, 16)
    filters = {
        "blosc": hdf5plugin.Blosc(cname="zstd", clevel=1),
        "zstd": hdf5plugin.Zstd(),
        "lz4": hdf5plugin.LZ4(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "filters.h5"
        with h5py.File(path, "w") as file:
            for name, options in filters.items():
                file.create_dataset(name, data=written, chunks=(1, 20, 16, 16), **options)
        with h5py.File(path, "r") as file:
            damaged = [name for name in filters if not np.array_equal(file[name][:], written)]
    if damaged:
        raise RuntimeError(f"data changed on the way through {', '.join(damaged)}; reinstall h5py and hdf5plugin")
    return f"{', '.join(filters)} written and read back"


def _event_kernels() -> str:
    from rvtssm.events.histogram import count_windows
    from rvtssm.records import Events, Windows

    event = Events(np.array([5]), np.array([1], np.uint16), np.array([2], np.uint16), np.array([1], np.uint8))
    windows = Windows(np.array([[0, 10]]), np.array([10]))
    counts = count_windows(event, windows, height=4, width=4, num_bins=2)
    if counts.sum() != 1 or counts[0, 3, 2, 1] != 1:
        raise RuntimeError("one event was counted wrongly; reinstall numba")
    return "compiled and counted"


def _write_access(folder: Path) -> str:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"rvtssm")
        file.flush()
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"


def _video() -> str:
    import cv2

    from rvtssm.inference.draw import write_video

    frames = [np.full((64, 96, 3), shade, np.uint8) for shade in (0, 128, 255)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        write_video(path, frames, fps=20)
        reader = cv2.VideoCapture(str(path))
        num_read = 0
        while reader.read()[0]:
            num_read += 1
        reader.release()
    if num_read != len(frames):
        raise RuntimeError(f"wrote {len(frames)} frames, read {num_read} back; reinstall opencv-python-headless")
    return "mp4 written and read back"


def _forward_pass() -> str:
    import torch

    from rvtssm.models.detector import build_detector
    from rvtssm.models.model_config import ModelConfig
    from rvtssm.ssm import TemporalConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = ModelConfig(size="tiny", embed_dim=32, fpn_blocks=1)
    detector = build_detector(tiny, TemporalConfig(), height=64, width=64, num_classes=2)
    detector = detector.to(device).eval()
    with torch.inference_mode():
        hist = torch.zeros(1, 1, 20, 64, 64, dtype=torch.uint8, device=device)
        predictions, _ = detector(hist, detector.init_state(1))
    boxes, scores = detector.head.compared(predictions)
    if not (boxes.isfinite().all() and scores.isfinite().all()):
        raise RuntimeError(f"the predictions on {device} are not finite")
    return f"tiny detector on {device}, {boxes.shape[1]} boxes"
