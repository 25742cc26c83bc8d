"""Files of results, written window by window: JSON lines, the box array of Prophesee's tools, results for COCO's tools.

`result_writers` names the functions that open further formats. They are imported when they are used.
"""

import contextlib
import io
import json
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.detection import result_writers
from rvtssm.detection.window_results import WindowResult, coco_results, rounded, track_fields
from rvtssm.records import DatasetSpec, Detections
from rvtssm.system.output_folder import numbered_name

# The layout of `_bbox.npy` in Gen1 and 1Mpx, so that detections can be used like ground truth.
DETECTION_DTYPE = np.dtype(
    {
        "names": ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"],
        "formats": ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28, 32],
        "itemsize": 40,
    }
)

_SYNC_S = 1.0  # time between two calls that bring a file to the disk
_HEADER_BYTES = 448  # of an array of boxes, a multiple of 64

Write = Callable[[WindowResult], None]


@dataclass(frozen=True)
class ResultContext:
    """What a writer of results knows about all windows."""

    spec: DatasetSpec  # names of the classes, and their ids on disk
    sensor_hw: tuple[int, int]  # height and width of the sensor, pixels
    min_score: float  # lowest score of boxes in pictures
    stamp_offset_us: int = 0  # from the times of windows to the clock of messages
    frame_id: str = ""  # coordinate frame of the camera, as messages name it


OpenWriter = Callable[[Path, ResultContext], AbstractContextManager[Write]]


def result_file_names(formats: Sequence[str]) -> list[str]:
    """Return the names of the files that some formats of results write."""
    return [file_name for name, (file_name, _) in result_writers().items() if name in formats and file_name]


@contextmanager
def open_result_files(
    folder: Path, formats: Sequence[str], context: ResultContext, number: int = 1
) -> Iterator[list[Write]]:
    """Yield the writers of all formats. Call each with every window; the files are complete after the block.

    A JSON line is {"t_us", "detections": [{"xyxy", "class", "score"}]}. The `image_id` of a COCO result is the time of
    the window in microseconds. If objects are tracked, every box has a `track_id`, 0 for a box without a track.
    Otherwise only the array has this field, filled with 0. The array has the fields of Prophesee's boxes, which name no
    class; `DatasetSpec.names_on_disk` says which id is which class.

    Args:
        folder: The folder to write to.
        formats: Keys of `result_writers`; others, such as those of pictures, are passed over.
        context: What the writers know about all windows.
        number: Of the run in this folder, for the names of the files.

    Raises:
        UserError: A format needs a package that is not installed.
    """
    with ExitStack() as stack:
        writers = []
        for name, (file_name, function) in result_writers().items():
            if name in formats:
                open_writer: OpenWriter = pkgutil.resolve_name(function)
                writers.append(stack.enter_context(open_writer(folder / numbered_name(file_name, number), context)))
        yield writers


class SturdyWriter:
    """Calls a writer of results, and goes on without it while the disk is full.

    Args:
        write: The writer.
        tell: Receives a sentence when the disk is full, and one when there is room again.
    """

    def __init__(self, write: Write, tell: Callable[[str], object]) -> None:
        self._write = write
        self._tell = tell
        self.num_unwritten = 0
        self._is_failing = False

    def __call__(self, result: WindowResult) -> None:
        """Write a window, or count it."""
        try:
            self._write(result)
        except OSError as error:
            self.num_unwritten += 1
            if not self._is_failing:
                self._tell(f"windows cannot be written ({error.strerror}); detection goes on, and writes when it can")
            self._is_failing = True
            return
        if self._is_failing:
            self._tell(f"windows are written again; {self.num_unwritten} are missing so far")
        self._is_failing = False


class GrowingFile:
    """A file that is whole after every window, whatever ends the process.

    What is added replaces the last bytes, the tail, which end the file. If the disk is full, the file stays as it was
    before. Once a second, the system is told to bring it to the disk, so that a loss of power costs a second.

    Args:
        path: The file.
        head: Its first bytes.
        tail: Its last bytes.
    """

    def __init__(self, path: Path, head: bytes = b"", tail: bytes = b"") -> None:
        self._file = io.FileIO(path, "x+")
        self._tail = tail
        self._end = 0
        self._synced_s = time.monotonic()
        self._syncing = threading.Thread()
        self._sync_error: OSError | None = None
        self.add(head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._syncing.is_alive():
            self._syncing.join()
        self._file.close()
        if kind is None and self._sync_error is not None:
            raise self._sync_error

    def add(self, data: bytes) -> None:
        """Write bytes before the tail. Raise OSError if they do not fit on the disk; then nothing was written.

        Raise it also if the bytes before could not be brought to the disk.
        """
        error = self._sync_error
        self._sync_error = None
        if error is not None:
            raise error
        try:
            _write_at(self._file, self._end, data + self._tail)
        # The disk is full: the file ends as it did before.
        except OSError:
            self._file.truncate(self._end)
            with contextlib.suppress(OSError):
                _write_at(self._file, self._end, self._tail)
            raise
        self._end += len(data)
        # A thread waits for the disk, so that no window has to.
        if time.monotonic() - self._synced_s > _SYNC_S and not self._syncing.is_alive():
            self._synced_s = time.monotonic()
            self._syncing = threading.Thread(target=self._sync)
            self._syncing.start()

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:  # raised by the next `add`, since nobody sees an error of a thread
            self._sync_error = error

    def set_head(self, head: bytes) -> None:
        """Replace the first bytes by as many others."""
        _write_at(self._file, 0, head)


def _write_at(file: io.FileIO, start: int, data: bytes) -> None:
    file.seek(start)
    done = 0
    while done < len(data):  # the first call may write a part, and the next one say why
        done += file.write(data[done:])


@contextmanager
def open_json_lines(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write a line of JSON per window."""
    with GrowingFile(path) as lines:

        def append(result: WindowResult) -> None:
            objects = detection_objects(result.detections, context.spec.class_names)
            lines.add(json.dumps({"t_us": result.t_us, "detections": objects}).encode() + b"\n")

        yield append


@contextmanager
def open_array(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write the boxes as one array, whose header says after every window how many there are."""
    disk_ids = np.asarray(context.spec.disk_class_ids, np.uint32)
    num_rows = 0
    with GrowingFile(path, _array_header(0)) as array:

        def append(result: WindowResult) -> None:
            nonlocal num_rows
            frame = result.detections
            # One row per box; the header then counts them.
            boxes = np.zeros(len(frame), DETECTION_DTYPE)
            boxes["t"] = frame.t_us
            boxes["x"], boxes["y"], boxes["w"], boxes["h"] = xyxy_to_ltwh(frame.xyxy).T
            boxes["class_id"] = disk_ids[frame.class_id]
            boxes["class_confidence"] = frame.score
            if frame.track_id is not None:
                boxes["track_id"] = frame.track_id
            array.add(boxes.tobytes())
            num_rows += len(frame)
            array.set_head(_array_header(num_rows))

        yield append


def _array_header(num_rows: int) -> bytes:
    """Return the header of an array of so many boxes, which has the same length for any number."""
    descr = np.lib.format.dtype_to_descr(DETECTION_DTYPE)
    text = repr({"descr": descr, "fortran_order": False, "shape": (num_rows,)})
    header = text.ljust(_HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@contextmanager
def open_coco_results(path: Path, context: ResultContext) -> Iterator[Write]:
    """Write one list of JSON."""
    separator = "\n"
    with GrowingFile(path, b"[", b"\n]\n") as results:

        def append(result: WindowResult) -> None:
            nonlocal separator
            boxes = [*map(json.dumps, coco_results(result.detections, context.spec))]
            if boxes:
                results.add((separator + ",\n".join(boxes)).encode())
                separator = ",\n"

        yield append


def detection_objects(frame: Detections, class_names: Sequence[str]) -> list[dict[str, object]]:
    """Return the boxes of one window as objects of a JSON line.

    Args:
        frame: The detections.
        class_names: Names of the classes.
    """
    objects = list[dict[str, object]]()
    columns = frame.xyxy, frame.class_id, frame.score, track_fields(frame)
    for xyxy, class_id, score, track in zip(*columns, strict=True):
        objects.append(
            {"xyxy": rounded(xyxy), "class": class_names[class_id], "score": round(float(score), 4), **track}
        )
    return objects
