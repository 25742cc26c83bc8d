"""Detections on disk: JSON lines for everyone, and the box array that Prophesee's tools and ours read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.records import Detections

# as in the `_bbox.npy` of Gen1 and 1Mpx, so that detections can stand where ground truth does
DETECTION_DTYPE = np.dtype(
    {
        "names": ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"],
        "formats": ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28, 32],
        "itemsize": 40,
    }
)


@contextmanager
def open_detection_files(
    folder: Path, class_names: Sequence[str], disk_class_ids: Sequence[int]
) -> Iterator[Callable[[Detections], None]]:
    """A function that appends the detections of one window to `detections.jsonl` and `detections.npy` in a folder.

    A line is {"t_us", "detections": [{"xyxy", "class", "score"}]}; a row of the array carries the class id that the
    dataset has on disk. The array is complete when the block ends; until then its rows are in a raw file beside it.
    """
    rows_path, disk_ids = folder / "detections.rows", np.asarray(disk_class_ids, np.uint32)
    num_rows = 0
    with open(folder / "detections.jsonl", "w") as lines, open(rows_path, "wb") as rows:

        def append(frame: Detections) -> None:
            nonlocal num_rows
            lines.write(json.dumps({"t_us": frame.t_us, "detections": _objects(frame, class_names)}) + "\n")
            rows.write(_rows(frame, disk_ids).tobytes())
            num_rows += len(frame)

        yield append
    with open(folder / "detections.npy", "wb") as array, open(rows_path, "rb") as written:
        header = {"descr": np.lib.format.dtype_to_descr(DETECTION_DTYPE), "fortran_order": False, "shape": (num_rows,)}
        np.lib.format.write_array_header_1_0(array, header)
        shutil.copyfileobj(written, array)
    rows_path.unlink()


def _objects(frame: Detections, class_names: Sequence[str]) -> list[dict[str, object]]:
    return [
        {
            "xyxy": [round(float(edge), 2) for edge in xyxy],
            "class": class_names[class_id],
            "score": round(float(score), 4),
        }
        for xyxy, class_id, score in zip(frame.xyxy, frame.class_id, frame.score, strict=True)
    ]


def _rows(frame: Detections, disk_ids: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(frame), DETECTION_DTYPE)
    rows["t"] = frame.t_us
    rows["x"], rows["y"], rows["w"], rows["h"] = xyxy_to_ltwh(frame.xyxy).T
    rows["class_id"] = disk_ids[frame.class_id]
    rows["class_confidence"] = frame.score
    return rows
