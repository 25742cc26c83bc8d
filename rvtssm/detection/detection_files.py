"""Write detections to disk: JSON lines, the box array of Prophesee's tools, results for COCO's tools, MCAP."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.contrib.ros.detection_bag import open_detection_bag
from rvtssm.detection.inference_config import DETECTION_FILES
from rvtssm.records import Detections

# The layout of `_bbox.npy` in Gen1 and 1Mpx, so that detections can be used like ground truth.
DETECTION_DTYPE = np.dtype(
    {
        "names": ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"],
        "formats": ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28, 32],
        "itemsize": 40,
    }
)

Append = Callable[[Detections], None]


@contextmanager
def open_detection_files(
    folder: Path, formats: Sequence[str], class_names: Sequence[str], disk_class_ids: Sequence[int]
) -> Iterator[Append]:
    """Yield a function that appends the detections of one window to all files. They are complete after the block.

    A JSON line is {"t_us", "detections": [{"xyxy", "class", "score"}]}. The `image_id` of a COCO result is the time of
    the window in microseconds. If objects are tracked, every box has a `track_id`, 0 for a box without a track.
    Otherwise only the array has this field, filled with 0. The array has the fields of Prophesee's boxes, which name no
    class; `DatasetSpec.names_on_disk` says which id is which class.

    Args:
        folder: The folder to write to.
        formats: Keys of DETECTION_FILES.
        class_names: Names of the classes, for JSON lines and COCO results.
        disk_class_ids: Ids of the classes, for the array and the COCO results.
    """
    with ExitStack() as stack:
        writers = [
            stack.enter_context(_WRITERS[name](folder / DETECTION_FILES[name], class_names, disk_class_ids))
            for name in DETECTION_FILES
            if name in formats
        ]

        def append(frame: Detections) -> None:
            for write in writers:
                write(frame)

        yield append


@contextmanager
def _json_lines(path: Path, class_names: Sequence[str], disk_class_ids: Sequence[int]) -> Iterator[Append]:
    with open(path, "w") as lines:

        def append(frame: Detections) -> None:
            lines.write(json.dumps({"t_us": frame.t_us, "detections": detection_objects(frame, class_names)}) + "\n")

        yield append


@contextmanager
def _array(path: Path, class_names: Sequence[str], disk_class_ids: Sequence[int]) -> Iterator[Append]:
    """Write the rows to a temporary file first, because the header of an array contains their number."""
    rows_path, disk_ids = path.with_suffix(".rows"), np.asarray(disk_class_ids, np.uint32)
    num_rows = 0
    with open(rows_path, "wb") as rows:

        def append(frame: Detections) -> None:
            nonlocal num_rows
            boxes = np.zeros(len(frame), DETECTION_DTYPE)
            boxes["t"] = frame.t_us
            boxes["x"], boxes["y"], boxes["w"], boxes["h"] = xyxy_to_ltwh(frame.xyxy).T
            boxes["class_id"] = disk_ids[frame.class_id]
            boxes["class_confidence"] = frame.score
            if frame.track_id is not None:
                boxes["track_id"] = frame.track_id
            rows.write(boxes.tobytes())
            num_rows += len(frame)

        yield append
    with open(path, "wb") as array, open(rows_path, "rb") as written:
        header = {"descr": np.lib.format.dtype_to_descr(DETECTION_DTYPE), "fortran_order": False, "shape": (num_rows,)}
        np.lib.format.write_array_header_1_0(array, header)
        shutil.copyfileobj(written, array)
    rows_path.unlink()


@contextmanager
def _coco_results(path: Path, class_names: Sequence[str], disk_class_ids: Sequence[int]) -> Iterator[Append]:
    is_first = True
    with open(path, "w") as results:
        results.write("[")

        def append(frame: Detections) -> None:
            nonlocal is_first
            for found in coco_results(frame, class_names, disk_class_ids):
                results.write(("\n" if is_first else ",\n") + json.dumps(found))
                is_first = False

        yield append
        results.write("\n]\n")


def coco_results(
    frame: Detections, class_names: Sequence[str], disk_class_ids: Sequence[int]
) -> list[dict[str, object]]:
    """Return the detections of one window as results for COCO's tools. `image_id` is its time in microseconds.

    Args:
        frame: The detections.
        class_names: Names of the classes.
        disk_class_ids: Ids of the classes.
    """
    return [
        {
            "image_id": frame.t_us,
            "category_id": int(disk_class_ids[class_id]),
            "category": class_names[class_id],
            "bbox": [round(float(edge), 2) for edge in ltwh],
            "score": round(float(score), 4),
            **track,
        }
        for ltwh, class_id, score, track in zip(
            xyxy_to_ltwh(frame.xyxy), frame.class_id, frame.score, _tracks(frame), strict=True
        )
    ]


def detection_objects(frame: Detections, class_names: Sequence[str]) -> list[dict[str, object]]:
    """Return the boxes of one window as objects of a JSON line.

    Args:
        frame: The detections.
        class_names: Names of the classes.
    """
    return [
        {
            "xyxy": [round(float(edge), 2) for edge in xyxy],
            "class": class_names[class_id],
            "score": round(float(score), 4),
            **track,
        }
        for xyxy, class_id, score, track in zip(frame.xyxy, frame.class_id, frame.score, _tracks(frame), strict=True)
    ]


def _tracks(frame: Detections) -> list[dict[str, int]]:
    """Return the track fields of every box, empty if objects are not tracked."""
    return [{}] * len(frame) if frame.track_id is None else [{"track_id": int(number)} for number in frame.track_id]


_WRITERS = {
    "jsonl": _json_lines,
    "npy": _array,
    "coco": _coco_results,
    "mcap": lambda path, class_names, _: open_detection_bag(path, class_names),
}
