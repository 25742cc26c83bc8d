"""Shows predictions in the viewer Rerun, live or in a file: events, boxes, tracks, rate and step time."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from rvtssm.drawing.draw import box_colors, class_name, events_image
from rvtssm.drawing.image_files import to_png
from rvtssm.records import Detections
from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError

log = logging.getLogger(__name__)

RECORDING_FILE = "prediction.rrd"
TIMELINE, CAMERA, EVENTS, OBJECTS = "time", "camera", "camera/events", "camera/objects"
PLOTS = "plots/rate_hz", "plots/step_ms", "plots/objects"
_FLUSH_S = 10.0  # longest wait for the viewer to receive the last data


class RerunLog:
    """Sends windows and pictures to recordings of Rerun, at their times in the recording of the camera.

    Boxes have the colour of their class, and a label with class, score and track. Plots show the rate in Hz, the time
    of a step in milliseconds, and the number of objects.

    Args:
        streams: Recordings of Rerun.
        class_names: Names of the classes.
        sensor_hw: Height and width of the sensor in pixels.
        min_score: Only objects with at least this score are logged.
    """

    def __init__(
        self, streams: Sequence[Any], class_names: Sequence[str], sensor_hw: tuple[int, int], min_score: float
    ) -> None:
        self._streams = streams
        self._class_names = class_names
        self._sensor_hw = sensor_hw
        self._min_score = min_score

    def window(self, found: Detections, start_us: int, seconds: float) -> None:
        """Log the objects of a window, the rate, and the time of the step.

        Args:
            found: Detections in pixels of the sensor.
            start_us: Start of the step in microseconds, which gives the rate.
            seconds: Time of the computation in seconds.
        """
        import rerun

        found = found[found.score >= self._min_score]
        labels = []
        for i, class_id in enumerate(found.class_id.tolist()):
            track = f" #{found.track_id[i]}" if found.track_id is not None and found.track_id[i] else ""
            labels.append(f"{class_name(self._class_names, class_id)} {found.score[i]:.2f}{track}")
        boxes = rerun.Boxes2D(
            array=found.xyxy,
            array_format=rerun.Box2DFormat.XYXY,
            labels=labels,
            colors=box_colors(self._class_names, found),
            class_ids=found.class_id,
        )
        numbers = 1e6 / max(found.t_us - start_us, 1), 1000 * seconds, len(found)
        scalars = {plot: rerun.Scalars(number) for plot, number in zip(PLOTS, numbers, strict=True)}
        self._log(found.t_us, {OBJECTS: boxes, **scalars})

    def picture(self, events: np.ndarray, t_us: int) -> None:
        """Log the events of a picture, enlarged to the sensor if the frame is smaller.

        Args:
            events: Events (2 * bins, h, w).
            t_us: Time of the picture in microseconds.
        """
        import rerun

        height, width = self._sensor_hw
        image = cv2.resize(events_image(events), (width, height), interpolation=cv2.INTER_NEAREST)
        self._log(t_us, {EVENTS: rerun.EncodedImage(contents=to_png(image), media_type="image/png")})

    def _log(self, t_us: int, content: dict[str, Any]) -> None:
        for stream in self._streams:
            stream.set_time(TIMELINE, duration=np.timedelta64(t_us, "us"))
            for entity, value in content.items():
                stream.log(entity, value)


@contextmanager
def open_rerun(
    paths: Sequence[Path | None], class_names: Sequence[str], sensor_hw: tuple[int, int], min_score: float
) -> Iterator[RerunLog | None]:
    """Yield the log of new recordings of Rerun, or None if there are no paths.

    Args:
        paths: File of each recording; None means the viewer.
        class_names: Names of the classes.
        sensor_hw: Height and width of the sensor in pixels.
        min_score: Only objects with at least this score are logged.

    Raises:
        UserError: If the package `rerun-sdk` is missing, if the viewer cannot be started, or if a file cannot be
            written. If the viewer has been closed at the end, there is only a warning.
    """
    if not paths:
        yield None
        return
    check_extra("Rerun", "rerun", "rerun")
    import rerun  # an optional package

    streams = [rerun.RecordingStream("rvtssm") for _ in paths]
    try:
        for stream, path in zip(streams, paths, strict=True):
            if path is not None:
                stream.save(path)
            else:
                _show(stream)
            stream.send_blueprint(_layout())
        yield RerunLog(streams, class_names, sensor_hw, min_score)
    finally:
        for stream, path in zip(streams, paths, strict=True):
            _finish(stream, path)


def _layout() -> Any:
    """Return the views: boxes over events in one, which is not Rerun's default, and plots one below the other."""
    from rerun import blueprint

    plots = [blueprint.TimeSeriesView(origin=f"/{plot}", name=plot.partition("/")[2]) for plot in PLOTS]
    camera = blueprint.Spatial2DView(origin=f"/{CAMERA}", name="events and objects")
    return blueprint.Blueprint(
        blueprint.Horizontal(camera, blueprint.Vertical(*plots), column_shares=[3, 2]), collapse_panels=True
    )


def _finish(stream: Any, path: Path | None) -> None:
    try:
        stream.flush(**({} if path else {"timeout_sec": _FLUSH_S}))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if path is not None:
            raise UserError(f"{path} cannot be written ({reason}); make room, or choose another folder") from None
        log.warning("predict.view=rerun: the viewer did not receive everything (%s); the files are complete", reason)
    finally:
        stream.disconnect()


def _show(stream: Any) -> None:
    try:
        stream.spawn()
    except RuntimeError as error:
        raise UserError(
            f"predict.view=rerun: the viewer cannot be started ({' '.join(str(error).split())}); it needs a screen. "
            "Write a file with predict.formats=[rrd] instead"
        ) from None
