"""Keep a detector's outputs on disk during an evaluation, so that the same evaluation can be resumed.

A file holds the outputs of a few recordings that were run in one batch. Its name is a digest of everything that the
outputs depend on, so an evaluation with other settings, weights, recordings or source code never reads it.
"""

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.readers.index import identity_of
from rvtssm.records import Detections
from rvtssm.system.atomic_files import atomic_file
from rvtssm.system.file_errors import FILE_ERRORS

_FOLDER = ".evaluation.kept"


def kept_folder(out: Path) -> Path:
    """Return the folder in which an evaluation that writes to `out` keeps outputs."""
    return out / _FOLDER


def remove_kept(out: Path) -> None:
    """Delete the outputs that evaluations have kept in `out`."""
    shutil.rmtree(kept_folder(out), ignore_errors=True)


def outputs_digest(settings: Mapping[str, Any], plugins: Sequence[str], sequences: Sequence[FrameSequence]) -> str:
    """Return a digest of everything that the outputs of `sequences` at their wanted steps depend on.

    Args:
        settings: Settings as plain values.
        plugins: Files of source code outside the package. Modules beside them are included, since they may import
            those.
        sequences: The recordings.
    """
    digest = hashlib.sha256(json.dumps([torch.__version__, settings], sort_keys=True).encode())
    beside = {path for plugin in plugins for path in Path(plugin).resolve().parent.glob("*.py")}
    for text in (own_source_code(), *(path.read_bytes() for path in sorted(beside))):
        digest.update(text)
    for sequence in sequences:
        digest.update(f"\n{sequence.name} {sequence.settings} {sequence.frame_shape}".encode())
        for path in _files(sequence.source.path):
            digest.update(identity_of(path, str(path.resolve()).encode()))
        for array in (sequence.windows.bounds_us, sequence.windows.dt_us, sequence.wanted_steps):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_outputs(path: Path, outputs: Sequence[Sequence[Detections]]) -> None:
    """Write the detections of each recording, ordered by time. The file only appears when it is complete.

    Args:
        path: The file.
        outputs: The detections of each recording.
    """
    rows = [(number, frame.t_us, len(frame)) for number, frames in enumerate(outputs) for frame in frames]
    empty = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    frames = [frame for of_recording in outputs for frame in of_recording] or [empty]
    names = ("xyxy", "score", "class_id")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(frame, name) for frame in frames]) for name in names}
    with atomic_file(path) as staged, open(staged, "wb") as file:
        np.savez(file, rows=np.array(rows, np.int64).reshape(-1, 3), **arrays)


def read_outputs(path: Path, num_recordings: int) -> list[list[Detections]] | None:
    """Return the detections of each recording; None if the file is missing or damaged.

    Args:
        path: The file.
        num_recordings: Number of recordings in the file.
    """
    if not path.is_file():
        return None
    outputs: list[list[Detections]] = [[] for _ in range(num_recordings)]
    with contextlib.suppress(*FILE_ERRORS):
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            xyxy, score, class_id, first = stored["xyxy"], stored["score"], stored["class_id"], 0
            for number, t_us, length in stored["rows"].tolist():
                part = slice(first, first + length)
                outputs[number].append(Detections(xyxy[part], score[part], class_id[part], t_us))
                first += length
        return outputs
    return None


@functools.cache
def own_source_code() -> bytes:
    """Return a digest of the source code of the package."""
    folder = Path(__file__).resolve().parents[1]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))).digest()


def _files(path: Path) -> list[Path]:
    """Return the files of a recording, which may be a folder."""
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
