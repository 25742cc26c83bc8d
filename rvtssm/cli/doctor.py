"""`rvtssm doctor`: what of this installation works. Nothing is imported before the check that needs it."""

import contextlib
import importlib.metadata
import os
import platform
import re
import tempfile
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rvtssm.cli.console import console


def doctor() -> int:
    """Print what each check found, or the error that it met; return 2 if one of them failed."""
    table = Table(show_header=False)
    code = 0
    for check in CHECKS:
        name = check.__name__.strip("_").replace("_", " ")
        try:
            table.add_row(Text("ok", "green"), name, check())
        except Exception as error:  # a broken library may raise anything, and the other checks still matter
            table.add_row(Text("broken", "red"), name, f"{type(error).__name__}: {' '.join(str(error).split())}")
            code = 2
    console.print(table)
    return code


def _versions() -> str:
    version = importlib.metadata.version
    return f"python {platform.python_version()}, rvtssm {version('rvtssm')}, torch {version('torch')}"


def _packages() -> str:
    """Import what detection needs; of what only training needs, compare the versions, as its import takes seconds."""
    from packaging.requirements import Requirement

    importlib.import_module("rvtssm.cli.predict")
    lines = importlib.metadata.requires("rvtssm") or []
    for line in lines:
        needed = Requirement(line)
        if "extra ==" in line or (needed.marker is not None and not needed.marker.evaluate()):
            continue
        version = importlib.metadata.version(needed.name)
        if not needed.specifier.contains(version, prereleases=True):
            raise RuntimeError(f"{needed.name} {version} is installed, but {needed} is needed; install rvtssm again")
    missing = []
    for line in lines:
        match = re.match(r"([\w.-]+).*extra == .(?!dev)(\w+)", line)
        if match and not _is_installed(match[1]):
            missing.append(f"{match[1]} (for {match[2]})")
    return f"all needed are there; optional, not installed: {', '.join(missing) or 'none'}"


def _is_installed(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False


def _device() -> str:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return f"CPU with {os.cpu_count()} cores; PyTorch finds no GPU"
    return ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))


def _forward_pass() -> str:
    from rvtssm.models import MODEL_SIZES
    from rvtssm.models.detector import build_detector, torch, usual_device
    from rvtssm.ssm import TemporalConfig

    device = usual_device()
    detector = build_detector(MODEL_SIZES["tiny"], TemporalConfig(), 64, 64, num_classes=2).to(device).eval()
    with torch.inference_mode():
        hist = torch.zeros(1, 1, 20, 64, 64, dtype=torch.uint8, device=device)
        detector(hist, detector.init_state(1))
    return f"the tiny detector runs on {device}"


def _recurrence() -> str:
    """Compare the states that this device computes, by its fastest code and by the loop, with those of the formula."""
    import torch

    from rvtssm.models.detector import usual_device
    from rvtssm.ssm.scan import KernelsOrLoop, scan, sweeps

    device = usual_device()
    # Random steps with a decay of 0.9, by both ways and by the formula.
    decay = torch.polar(torch.full((1, 1, 40), 0.9), torch.rand(1, 1, 40)).to(device)
    drive = torch.randn(30, 7, 40, dtype=decay.dtype).to(device)
    state = torch.zeros(7, 40, dtype=decay.dtype).to(device)
    computed = {method: scan(decay, drive, state, method)[0] for method in ("auto", "loop")}
    expected = []
    for step in drive:
        state = decay[0] * state + step
        expected.append(state)
    for method, states in computed.items():
        difference = float((states - torch.stack(expected)).abs().max())
        if not difference < 1e-4:
            raise RuntimeError(
                f"with temporal.scan={method}, states differ from the formula by {difference:.1e}; report this with "
                "the versions above"
            )
    # Which code it was.
    chosen = sweeps(device)
    module = chosen.sweeps if isinstance(chosen, KernelsOrLoop) else chosen
    return f"{str(vars(module)['__name__']).rpartition('.')[2]} and the loop give the states of the formula"


def _filters() -> str:
    """Write and read HDF5 data that are compressed as recordings are."""
    import h5py
    import hdf5plugin
    import numpy as np

    values = np.arange(100)
    filters = {"blosc": hdf5plugin.Blosc(), "lz4": hdf5plugin.LZ4(), "zstd": hdf5plugin.Zstd()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.h5"
        with h5py.File(path, "w") as file:
            for name, options in filters.items():
                file.create_dataset(name, data=values, chunks=(10,), **options)
        with h5py.File(path) as file:
            if broken := [name for name in filters if not np.array_equal(file[name], values)]:
                raise RuntimeError(f"{', '.join(broken)} gave other data than were written; install hdf5plugin again")
    return f"{', '.join(filters)}, with which HDF5 recordings are compressed, wrote and read data"


def _video() -> str:
    import av
    import numpy as np

    from rvtssm.drawing import open_video

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        with open_video(path, fps=20) as write:
            for _ in range(3):
                write(np.zeros((64, 96, 3), np.uint8))
        with av.open(str(path)) as container:
            codec = container.streams.video[0].codec_context
            decoded = len(list(container.decode(video=0))), codec.name, codec.pix_fmt
    if decoded != (3, "h264", "yuv420p"):
        raise RuntimeError(f"wrote 3 frames of h264 in yuv420p and read {decoded}; install av again")
    return "an MP4 file in H.264, which browsers play, was written and read back"


def _opencv() -> str:
    """Find several wheels of OpenCV, which install files of the same names over each other."""
    names = {str(package.metadata["Name"]).lower() for package in importlib.metadata.distributions()}
    wheels = sorted(filter(re.compile("opencv-(contrib-)?python(-headless)?").fullmatch, names))
    if len(wheels) < 2:
        return f"cv2 {importlib.import_module('cv2').__version__}"
    named = " and ".join(wheels)
    return f"{named} overwrite each other's files; if pictures fail, uninstall both, then install one of them"


def _camera() -> str:
    from rvtssm.detection.event_camera import connected_cameras
    from rvtssm.system.extras import is_installed

    if not is_installed("neuromorphic_drivers"):
        return "no library for cameras, which are optional; `bash scripts/install.sh camera` installs one"
    library = f"neuromorphic-drivers {importlib.metadata.version('neuromorphic-drivers')}"
    return f"{library} finds {', '.join(connected_cameras()) or 'no connected camera'}"


CHECKS = (_versions, _packages, _device, _recurrence, _forward_pass, _filters, _video, _opencv, _camera)
