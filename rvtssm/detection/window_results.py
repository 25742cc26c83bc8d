"""The result of a prediction: the objects of every window, as arrays, pictures, videos and records of other tools."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.detection.summary import RunSummary, counted
from rvtssm.drawing import open_video
from rvtssm.drawing.draw import class_name, draw_frame
from rvtssm.drawing.pictures import MAX_FPS
from rvtssm.events.frame_counter import count_windows
from rvtssm.readers.event_checks import check_events, to_events
from rvtssm.records import DatasetSpec, Detections, Events, Windows
from rvtssm.system.extras import check_extra
from rvtssm.system.limits import check_choice
from rvtssm.system.output_folder import result_file
from rvtssm.system.user_error import UserError

_SHOWN_OBJECTS = 3  # objects listed in the text of a frame


@dataclass(frozen=True, repr=False)
class WindowResult:
    """The objects of one window, best score first."""

    detections: Detections  # in sensor pixels
    start_us: int  # start of the window, which ends at `t_us`
    sensor_hw: tuple[int, int]  # height and width of the sensor, pixels
    spec: DatasetSpec  # the dataset of the training, which names the classes
    note: str | None = None  # a note on the weights, shown in pictures
    read: Callable[[int, int], Events] | None = field(default=None, compare=False)  # reads the events of [start, end)
    seconds: float = 0.0  # computing time: counting, detector and post-processing
    step_us: float = 0.0  # time since the end of the result before, in microseconds
    num_passed: int = 0  # windows since the result before that have no result of their own
    num_silent: int = 0  # those of them that were stepped over because nothing happened
    frame: np.ndarray | None = field(default=None, compare=False)  # what the detector saw (C, h, w), if kept
    waited_s: float = 0.0  # live: from the arrival of the window's last events to the start of its computation
    lag_s: float = 0.0  # live: from the arrival of the window's last events to its boxes
    time_s: float = 0.0  # live: wall-clock time of the boxes, seconds since 1970
    num_lost_packets: int = 0  # live: lost since the result before
    num_lost_events: int = 0  # live: events in these packets, as far as they are known

    def __len__(self) -> int:
        return len(self.detections)

    @property
    def t_us(self) -> int:
        """End of the window, microseconds."""
        return self.detections.t_us

    @property
    def xyxy(self) -> np.ndarray:
        """The boxes, (N, 4) float32: left, top, right and bottom in sensor pixels."""
        return self.detections.xyxy

    @property
    def score(self) -> np.ndarray:
        """The scores, (N,) float32."""
        return self.detections.score

    @property
    def class_id(self) -> np.ndarray:
        """The class of every object as a number, (N,) int64."""
        return self.detections.class_id

    @property
    def track_id(self) -> np.ndarray | None:
        """The track number of every object, (N,) int64, 0 without a track; None if objects were not tracked."""
        return self.detections.track_id

    @property
    def names(self) -> list[str]:
        """The class name of every object."""
        return [class_name(self.spec.class_names, class_id) for class_id in self.detections.class_id.tolist()]

    def above(self, min_score: float) -> "WindowResult":
        """Return the result with only the objects of at least this score."""
        return replace(self, detections=self.detections[self.detections.score >= min_score])

    def draw(self, events: object | None = None, min_score: float = 0.0) -> Image.Image:
        """Return a picture of the objects on the events of the window. A notebook displays it.

        Args:
            events: Events or a structured array; only those in the window are drawn. None reads them from the
                recording.
            min_score: Draw boxes with at least this score.

        Raises:
            UserError: The events were not kept, as with a pipe or an earlier push of a stream.
        """
        return Image.fromarray(self._picture(self.start_us, events, min_score))

    def _picture(self, start_us: int, events: object | None, min_score: float) -> np.ndarray:
        """Return the picture (h, w, 3) uint8 RGB with the events from `start_us` on."""
        # The events of the window: read again, or given.
        if events is None:
            if self.read is None:
                found = "the events of a pipe or a camera are not kept"
                raise UserError("stream.not_kept", found=found, advice="pass them: draw(EVENTS)")
            shown = self.read(start_us, self.t_us)
        else:
            shown = to_events(events)
        check_events(shown, *self.sensor_hw)
        window = Windows(np.array([[start_us, self.t_us]]), np.array([self.t_us - start_us]))
        (hist,) = count_windows(shown.between(start_us, self.t_us), window, *self.sensor_hw)
        return draw_frame(hist, self.detections, None, self.spec.class_names, min_score=min_score, note=self.note)

    def to_coco(self) -> list[dict[str, object]]:
        """Return results for COCO's tools. `image_id` is the end of the window in microseconds."""
        return coco_results(self.detections, self.spec)

    def to_supervision(self) -> Any:
        """Return `supervision.Detections`.

        Raises:
            UserError: That library is not installed.
        """
        check_extra("to_supervision", "supervision", "supervision")
        import supervision

        return supervision.Detections(
            xyxy=self.detections.xyxy,
            confidence=self.detections.score,
            class_id=self.detections.class_id,
            tracker_id=self.detections.track_id,
            data={"class_name": np.array(self.names)},
        )

    def __repr__(self) -> str:
        shown = [f"{name} {score:.2f}" for name, score in zip(self.names, self.score, strict=True)][:_SHOWN_OBJECTS]
        shown += ["..."] * (len(self) > _SHOWN_OBJECTS)
        return f"WindowResult({counted(len(self), 'object')} at {self.t_us / 1e6:.3f} s: {', '.join(shown) or '-'})"

    def _repr_html_(self) -> str:
        rows = []
        for name, score, (left, top, right, bottom) in zip(self.names, self.score, self.xyxy, strict=True):
            rows.append((name, f"{score:.2f}", f"{left:.0f}", f"{top:.0f}", f"{right:.0f}", f"{bottom:.0f}"))
        caption = f"{counted(len(self), 'object')} at {self.t_us / 1e6:.3f} s"
        return _table(caption, ("class", "score", "left", "top", "right", "bottom"), rows)


@dataclass(frozen=True, repr=False)
class Prediction(Sequence[WindowResult]):
    """The objects of every window of a recording, in order, and the summary of the run.

    >>> windows = rvtssm.load("street-tiny").predict("street/test/test_0000_td.dat", min_score=0.3)
    >>> windows.summary.hz, windows[0].t_us - windows[0].start_us
    (20.0, 50000)
    """

    frames: list[WindowResult]
    summary: RunSummary

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: Any) -> Any:
        """Return the result of one window, or a list of results for a slice."""
        return self.frames[index]

    def count(self, value: Any) -> int:
        """Return the number of boxes of a class in all windows, such as `found.count("person")`.

        Args:
            value: The name of the class.

        Raises:
            UserError: The weights have no such class.
        """
        check_choice("class", value, self.summary.classes.values())
        return dict(self._counts()).get(value, 0)

    def to_coco(self) -> list[dict[str, object]]:
        """Return the results of all windows for COCO's tools."""
        return [result for frame in self.frames for result in frame.to_coco()]

    def save(self, path: str | Path, min_score: float = 0.0) -> None:
        """Write a video of the events with their boxes.

        It plays at the speed of the recording. Above 30 Hz, each picture covers several windows: it shows the boxes of
        the last one on the events since the previous picture.

        Args:
            path: A file that ends in .mp4.
            min_score: Draw boxes with at least this score.

        Raises:
            UserError: The file has another suffix, the events were not kept, or `save` did not write the file that is
                there.
        """
        path = Path(path)
        if path.suffix != ".mp4":
            advice = "choose a name that ends in .mp4; `to_coco()` returns the boxes as a list, which json.dump writes"
            raise UserError("file.kind", name=path, found="it is not a video", advice=advice)
        # So many windows per picture play at the speed of the recording.
        period = max(1, math.ceil(self.summary.hz / MAX_FPS - 1e-9))
        with result_file(path) as staged, open_video(staged, self.summary.hz / period) as write:
            for i in range(min(period, len(self)) - 1, len(self), period):
                first, last = self.frames[max(0, i + 1 - period)], self.frames[i]
                write(last._picture(first.start_us, None, min_score))

    def _counts(self) -> list[tuple[str, int]]:
        """Return the number of boxes of every class that was found, sorted by name."""
        return sorted(Counter(name for frame in self.frames for name in frame.names).items())

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self._counts()) or "no boxes"
        windows = counted(len(self), "window")
        guess = ""
        reduced = f", downsample={self.summary.downsample}" * (self.summary.downsample > 1)
        if self.summary.assumed_sensor:
            height, width = self.summary.sensor_hw
            guess = f", assuming {width} x {height} ({self.summary.assumed_sensor})"
        return f"Prediction({self.summary.source}: {windows} at {self.summary.hz:g} Hz{reduced}, {counts}{guess})"

    def _repr_html_(self) -> str:
        return _table(" | ".join(self.summary.lines()[:3]), ("class", "boxes"), self._counts())


def coco_results(frame: Detections, spec: DatasetSpec) -> list[dict[str, object]]:
    """Return the detections of one window as results for COCO's tools. `image_id` is its time in microseconds.

    Args:
        frame: The detections.
        spec: Names of the classes, and their ids on disk.
    """
    results = list[dict[str, object]]()
    columns = xyxy_to_ltwh(frame.xyxy), frame.class_id, frame.score, track_fields(frame)
    for ltwh, class_id, score, track in zip(*columns, strict=True):
        result = {
            "image_id": frame.t_us,
            "category_id": int(spec.disk_class_ids[class_id]),
            "category": spec.class_names[class_id],
            "bbox": rounded(ltwh),
            "score": round(float(score), 4),
        }
        results.append(result | track)
    return results


def rounded(box: np.ndarray) -> list[float]:
    """Return the numbers of a box as text files hold them, in hundredths of a pixel."""
    return [round(float(edge), 2) for edge in box]


def track_fields(frame: Detections) -> list[dict[str, int]]:
    """Return the track fields of every box, empty if objects are not tracked."""
    if frame.track_id is None:
        return [{}] * len(frame)
    return [{"track_id": int(number)} for number in frame.track_id]


def _table(caption: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        body += f"<tr>{cells}</tr>"
    return f"<p>{escape(caption)}</p><table><tr>{head}</tr>{body}</table>"
