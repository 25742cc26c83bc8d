"""Shows predictions in the viewer Rerun, live or in a file: events, boxes, tracks, rate and step time."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from rvtssm.detection.result_files import ResultContext
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing import to_png
from rvtssm.drawing.draw import box_colors, class_name, events_image
from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError, in_one_line

log = logging.getLogger(__name__)

TIMELINE, CAMERA, EVENTS, OBJECTS = "time", "camera", "camera/events", "camera/objects"
PLOTS = "plots/rate_hz", "plots/step_ms", "plots/objects"
_FLUSH_S = 10.0  # longest wait for the viewer to receive the last data


class RerunLog:
    """Sends windows and pictures to a recording of Rerun, at their times in the recording of the camera.

    Boxes have the colour of their class, and a label with class, score and track. Plots show the rate in Hz, the time
    of a step in milliseconds, and the number of objects.

    Args:
        stream: A recording of Rerun.
        context: The classes, the sensor, and the lowest score of objects that are logged.
    """

    def __init__(self, stream: Any, context: ResultContext) -> None:
        self._stream = stream
        self._class_names, self._sensor_hw = context.spec.class_names, context.sensor_hw
        self._min_score = context.min_score

    def __call__(self, result: WindowResult) -> None:
        """Log the objects of a window, the rate, and the time of the step."""
        import rerun

        shown = result.detections[result.score >= self._min_score]
        labels = []
        for i, class_id in enumerate(shown.class_id.tolist()):
            label = f"{class_name(self._class_names, class_id)} {shown.score[i]:.2f}"
            if shown.track_id is not None and shown.track_id[i]:
                label += f" #{shown.track_id[i]}"
            labels.append(label)
        boxes = rerun.Boxes2D(
            array=shown.xyxy,
            array_format=rerun.Box2DFormat.XYXY,
            labels=labels,
            colors=box_colors(self._class_names, shown),
            class_ids=shown.class_id,
        )
        numbers = 1e6 / max(result.step_us, 1), 1000 * result.seconds, len(shown)
        scalars = {plot: rerun.Scalars(number) for plot, number in zip(PLOTS, numbers, strict=True)}
        self._log(shown.t_us, {OBJECTS: boxes, **scalars})

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
        self._stream.set_time(TIMELINE, duration=np.timedelta64(t_us, "us"))
        for entity, value in content.items():
            self._stream.log(entity, value)


def open_rerun_file(path: Path, context: ResultContext) -> AbstractContextManager[RerunLog]:
    """Return the log of a file of Rerun (`formats=[rrd]`).

    Args:
        path: The file.
        context: The classes, the sensor, and the lowest score of objects that are logged.

    Raises:
        UserError: The package `rerun-sdk` is missing, or the file cannot be written.
    """
    return _opened("formats=[rrd]", path, context)


def open_rerun_viewer(path: Path, context: ResultContext) -> AbstractContextManager[RerunLog]:
    """Return the log of the viewer, which opens (`formats=[rerun]`). If it was closed meanwhile, there is a warning.

    Args:
        path: Not used, because there is no file.
        context: The classes, the sensor, and the lowest score of objects that are logged.

    Raises:
        UserError: The package `rerun-sdk` is missing, or the viewer cannot be started.
    """
    return _opened("formats=[rerun]", None, context)


@contextmanager
def _opened(what: str, path: Path | None, context: ResultContext) -> Iterator[RerunLog]:
    check_extra(what, "rerun", "rerun")
    import rerun  # an optional package

    stream = rerun.RecordingStream("rvtssm")
    try:
        if path is not None:
            stream.save(path)
        else:
            _show(stream)
        stream.send_blueprint(_layout())
        yield RerunLog(stream, context)
    finally:
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
        reason = in_one_line(error)
        if path is not None:
            found = f"it cannot be written ({reason})"
            raise UserError(
                "file.not_writable", name=path, found=found, advice="make room, or choose another folder"
            ) from None
        log.warning("formats=[rerun]: the viewer did not receive everything (%s); the files are complete", reason)
    finally:
        stream.disconnect()


def _show(stream: Any) -> None:
    try:
        stream.spawn()
    except RuntimeError as error:
        needed = f"the viewer cannot be started ({in_one_line(error)}), which needs a screen"
        advice = "write a file with formats=[rrd]"
        raise UserError("setting.needs", name="formats", found="[rerun]", needed=needed, advice=advice) from None
