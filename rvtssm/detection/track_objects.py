"""Track ids: one number for the same object in all windows, assigned by ByteTrack from the package trackers.

Source: ByteTrack (Zhang et al., 2022).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rvtssm.detection import TRACKERS
from rvtssm.records import Detections
from rvtssm.system.extras import check_extra
from rvtssm.system.limits import check_choice, check_number

TRACK_MEMORY_S = 1.0  # how long a lost object keeps its number; ByteTrack remembers 30 frames at 30 Hz
LOWEST_SCORE = 0.1  # lowest score of a box that continues a track, as in the paper
_FRAMES_PER_SECOND = 30.0  # unit in which the package counts how long it remembers a track


class Tracker:
    """Numbers the objects of one recording or camera. Pass it the detections of all windows in order.

    Each class has its own tracks. Times are those of the windows, so the rate may change. A track starts with a box of
    at least `start_score`, and has its number from its second box on.

    Args:
        name: One of TRACKERS.
        num_classes: Number of classes.
        hz: The usual rate of windows.
        memory_s: How long a lost object keeps its number, in seconds; rounded up to thirtieths of a second.
        start_score: Lowest score of the first box of a track.

    Raises:
        UserError: The name is unknown, or the package is not installed.
    """

    def __init__(self, name: str, num_classes: int, hz: float, memory_s: float, start_score: float) -> None:
        check_choice("track", name, TRACKERS)
        check_number("track_memory_s", memory_s, 0)
        check_extra(f"track={name}", "tracks", "trackers")
        import supervision
        from trackers import ByteTrackTracker

        self._boxes = supervision.Detections
        self._new_tracker = ByteTrackTracker
        self._num_classes = num_classes
        self._settings: dict[str, Any] = {
            # counted from the last box, which is one window before the object is missed
            "lost_track_buffer": math.ceil(_FRAMES_PER_SECOND * (memory_s + 1 / hz)),
            "frame_rate": hz,
            "track_activation_threshold": start_score,
            "high_conf_det_threshold": start_score,
        }
        self._trackers: dict[int, Any] = {}  # one per class
        self._first_us: int | None = None

    def reset(self) -> None:
        """Forget all tracks, because another stream begins."""
        self._trackers = {}
        self._first_us = None

    def state_dict(self) -> dict[str, Any]:
        """Return all tracks as plain data and tensors."""
        trackers = {}
        for class_id, tracker in self._trackers.items():
            trackers[class_id] = {**_plain(tracker), "tracks": [*map(_plain, tracker.tracks)]}
        return {"first_us": self._first_us, "trackers": trackers}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        from trackers.core.bytetrack.tracklet import ByteTrackTracklet

        self.reset()
        self._first_us = stored["first_us"]
        for class_id, state in stored["trackers"].items():
            # Tracks are made with any box, then filled.
            tracker = self._trackers[class_id] = self._new_tracker(**self._settings)
            tracks = [ByteTrackTracklet(np.array([0.0, 0.0, 1.0, 1.0])) for _ in state["tracks"]]
            _fill(tracker, {name: value for name, value in state.items() if name != "tracks"})
            for track, state_of_track in zip(tracks, state["tracks"], strict=True):
                _fill(track, state_of_track)
            tracker.tracks = tracks

    def update(self, detections: Detections) -> Detections:
        """Return the detections of the next window with `track_id`."""
        if self._first_us is None:
            self._first_us = detections.t_us
        seconds = (detections.t_us - self._first_us) / 1e6
        track_id = np.zeros(len(detections), np.int64)
        for class_id in sorted({*self._trackers, *detections.class_id.tolist()}):
            if class_id not in self._trackers:
                self._trackers[class_id] = self._new_tracker(**self._settings)
            # The boxes of this class, weak ones only to continue tracks.
            rows = np.flatnonzero((detections.class_id == class_id) & (detections.score >= LOWEST_SCORE))
            boxes = self._boxes(
                xyxy=detections.xyxy[rows].astype(np.float64), confidence=detections.score[rows], data={"row": rows}
            )
            tracked = self._trackers[class_id].update(boxes, timestamp=seconds)
            # Numbers count from 0 in each class; all classes together must differ, and 0 means no track.
            if len(tracked):
                own = tracked.tracker_id  # counted from 0 within the class; -1 without a track
                track_id[tracked.data["row"]] = np.where(own < 0, 0, 1 + class_id + own * self._num_classes)
        return replace(detections, track_id=track_id)


def _plain(part: Any) -> dict[str, Any]:
    """Return the numbers and arrays in an object of the package and in the objects that it holds, by name."""
    found: dict[str, Any] = {}
    for name, value in vars(part).items():
        if isinstance(value, np.ndarray):
            found[name] = torch.from_numpy(value.copy())
        elif isinstance(value, np.generic):
            found[name] = value.item()
        elif value is None or isinstance(value, bool | int | float):
            found[name] = value
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            found[name] = _plain(value)
    return found


def _fill(part: Any, plain: dict[str, Any]) -> None:
    """Put the values of `_plain` into an object that was made in the same way."""
    for name, value in plain.items():
        if isinstance(value, dict):
            _fill(getattr(part, name), value)
        else:
            setattr(part, name, value.numpy().copy() if isinstance(value, torch.Tensor) else value)


def tracker_of(
    name: str | None, num_classes: int, hz: float, start_score: float, memory_s: float = TRACK_MEMORY_S
) -> Tracker | None:
    """Return the tracker that `track` names; None without a name. See `Tracker`."""
    if not name:
        return None
    return Tracker(name, num_classes, hz, memory_s, start_score)
