"""Files of results, written window by window: JSON lines, the box array of Prophesee's tools, results for COCO's tools.

Folders of contrib write further formats; RESULT_WRITERS names their functions, which are imported when they are used.
"""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.detection.inference_config import RESULT_WRITERS
from rvtssm.detection.window_results import WindowResult, coco_results, track_fields
from rvtssm.records import DatasetSpec, Detections
from rvtssm.system.user_error import UserError

# The layout of `_bbox.npy` in Gen1 and 1Mpx, so that detections can be used like ground truth.
DETECTION_DTYPE = np.dtype(
    {
        "names": ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"],
        "formats": ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28, 32],
        "itemsize": 40,
    }
)

Write = Callable[[WindowResult], None]


@dataclass(frozen=True)
class ResultContext:
    """What a writer of results knows about all windows."""

    spec: DatasetSpec  # names of the classes, and their ids on disk
    sensor_hw: tuple[int, int]  # height and width of the sensor, pixels
    min_score: float  # lowest score of boxes in pictures


OpenWriter = Callable[[Path, ResultContext], AbstractContextManager[Write]]


def result_file_names() -> list[str]:
    """Return the names of the files that formats of results write."""
    return [file_name for file_name, _ in RESULT_WRITERS.values() if file_name]


@contextmanager
def open_result_files(folder: Path, formats: Sequence[str], context: ResultContext) -> Iterator[list[Write]]:
    """Yield the writers of all formats. Call each with every window; the files are complete after the block.

    A JSON line is {"t_us", "detections": [{"xyxy", "class", "score"}]}. The `image_id` of a COCO result is the time of
    the window in microseconds. If objects are tracked, every box has a `track_id`, 0 for a box without a track.
    Otherwise only the array has this field, filled with 0. The array has the fields of Prophesee's boxes, which name no
    class; `DatasetSpec.names_on_disk` says which id is which class.

    Args:
        folder: The folder to write to.
        formats: Keys of RESULT_WRITERS; others, such as those of pictures, are passed over.
        context: What the writers know about all windows.

    Raises:
        UserError: The folder of contrib that writes a format is missing, or lacks a package.
    """
    with ExitStack() as stack:
        yield [
            stack.enter_context(_writer(name)(folder / file_name, context))
            for name, (file_name, _) in RESULT_WRITERS.items()
            if name in formats
        ]


def _writer(name: str) -> OpenWriter:
    module, _, function = RESULT_WRITERS[name][1].partition(":")
    try:
        opened: OpenWriter = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UserError(
            "predict.format_not_installed",
            f"formats=[{name}] is written by {module}, which this installation lacks ({error}); leave {name} out, or "
            "install that folder of rvtssm/contrib",
        ) from None
    return opened


@contextmanager
def open_json_lines(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write a line of JSON per window."""
    with open(path, "w") as lines:

        def append(result: WindowResult) -> None:
            objects = detection_objects(result.detections, context.spec.class_names)
            lines.write(json.dumps({"t_us": result.t_us, "detections": objects}) + "\n")

        yield append


@contextmanager
def open_array(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write the rows to a temporary file first, because the header of an array contains their number."""
    rows_path, disk_ids = path.with_suffix(".rows"), np.asarray(context.spec.disk_class_ids, np.uint32)
    num_rows = 0
    with open(rows_path, "wb") as rows:

        def append(result: WindowResult) -> None:
            nonlocal num_rows
            frame = result.detections
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
def open_coco_results(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write one list of JSON."""
    separator = "\n"
    with open(path, "w") as results:
        results.write("[")

        def append(result: WindowResult) -> None:
            nonlocal separator
            for box in coco_results(result.detections, context.spec):
                results.write(separator + json.dumps(box))
                separator = ",\n"

        yield append
        results.write("\n]\n")


def detection_objects(frame: Detections, class_names: Sequence[str]) -> list[dict[str, object]]:
    """Return the boxes of one window as objects of a JSON line.

    Args:
        frame: The detections.
        class_names: Names of the classes.
    """
    objects = list[dict[str, object]]()
    columns = frame.xyxy, frame.class_id, frame.score, track_fields(frame)
    for xyxy, class_id, score, track in zip(*columns, strict=True):
        box = [round(float(edge), 2) for edge in xyxy]
        objects.append({"xyxy": box, "class": class_names[class_id], "score": round(float(score), 4), **track})
    return objects
