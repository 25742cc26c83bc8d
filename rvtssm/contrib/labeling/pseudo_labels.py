"""Boxes for recordings without labels: those on which a detector agrees forwards and backwards in time.

Source: LEOD (Wu et al., 2024), where a recurrent detector labels data it was not trained on, also on reversed events,
and tracks decide which boxes are trusted. Deviation: here the state is carried over the whole recording in both
directions, and a box is trusted only if both directions agree on it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from rvtssm.boxes import pairwise_iou, xyxy_to_ltwh
from rvtssm.contrib.labeling.label_config import LabelConfig
from rvtssm.detection.engine import StreamDetector, detect
from rvtssm.detection.track_objects import LOWEST_SCORE, Tracker
from rvtssm.events.label_rules import FASTEST_LABELS_US
from rvtssm.events.labels import BOX_DTYPE, Boxes
from rvtssm.events.windows import FreeGrid, label_grid
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.readers import Recording
from rvtssm.readers.source import EventSource
from rvtssm.records import Detections, Events, Windows
from rvtssm.system.user_error import UserError

_MOST_DETECTIONS = 100  # the most detections in a frame
_WINDOWS_PER_CALL = 8  # windows per call of the detector; affects speed and memory, not results
_SPAN_US = 400_000  # length of the block of a reversed recording that is decoded at once


def label_every(checkpoint: LoadedCheckpoint, config: LabelConfig) -> int:
    """Return the number of windows from one label to the next.

    Args:
        checkpoint: The weights, which give the stride and the usual label interval.
        config: Settings of `rvtssm label`.

    Raises:
        UserError: Training would not keep labels this close.
    """
    stride_us = checkpoint.windows.stride_us
    interval_us = checkpoint.spec.label_interval_us if config.interval_ms is None else 1000 * config.interval_ms
    every = max(1, round(interval_us / stride_us))
    if every * stride_us < FASTEST_LABELS_US:
        raise UserError(
            "setting.out_of_range", name="label.interval_ms", found=f"{every * stride_us / 1000:g}",
            needed=f"{FASTEST_LABELS_US / 1000:g} or more, in steps of {stride_us / 1000:g}, else training drops them",
        )  # fmt: skip
    return every


def find_pseudo_boxes(
    checkpoint: LoadedCheckpoint, recording: Recording, labelled_us: np.ndarray, config: LabelConfig
) -> Boxes:
    """Label a recording between its existing label times.

    `pseudo_score` is the mean score of both directions. It is negative for an uncertain object: one that only one
    direction found, or whose score is too low or whose track is too short. Boxes below half of `min_score` are left
    out. `still_us` is unknown. Intervals are counted from the existing label time before, so the usual interval only
    adds labels where a gap is longer.

    Args:
        checkpoint: The weights.
        recording: The recording.
        labelled_us: int64, times that already have labels; empty if there are none.
        config: Settings of `rvtssm label`.

    Returns:
        (N,) of BOX_DTYPE, class ids as on disk.
    """
    settings, spec = checkpoint.windows, checkpoint.spec
    first_us, last_us = recording.time_range_us
    anchors_us = labelled_us[(labelled_us > first_us) & (labelled_us <= last_us + 1)]
    after = FreeGrid(int(anchors_us.max(initial=first_us)), settings)
    ends_us = np.concatenate([anchors_us, after.ends_us(0, after.num_ended(last_us + 1))])
    if not len(ends_us):
        return np.zeros(0, BOX_DTYPE)
    windows = label_grid(ends_us, first_us, settings)
    reversed_recording = ReversedRecording(recording)
    back_us = np.array([reversed_recording.at(end_us) for end_us in windows.ends_us.tolist()][::-1], np.int64)
    forward = track_windows(checkpoint, recording, windows, config)
    backward_windows = label_grid(back_us, int(back_us[0]), settings)
    backward = track_windows(checkpoint, reversed_recording, backward_windows, config)
    index = np.arange(len(windows))
    starts = np.searchsorted(windows.ends_us, np.unique(anchors_us)) if len(anchors_us) else index[:1]
    since = index - starts[np.maximum(np.searchsorted(starts, index, side="right") - 1, 0)]
    back_at = {reversed_recording.at(frame.t_us): frame for frame in backward}
    seconds = _track_seconds(forward), _track_seconds(backward)
    labelled = set(labelled_us.tolist())
    boxes = [np.zeros(0, BOX_DTYPE)]
    for frame, is_due in zip(forward, since % label_every(checkpoint, config) == 0, strict=True):
        if is_due and frame.t_us not in labelled:
            boxes.append(agreed_boxes(frame, back_at[frame.t_us], seconds, np.asarray(spec.disk_class_ids), config))
    return np.concatenate(boxes)


def track_windows(
    checkpoint: LoadedCheckpoint, source: EventSource, windows: Windows, config: LabelConfig
) -> list[Detections]:
    """Run the detector and the tracker over all windows.

    Args:
        checkpoint: The weights.
        source: The events, forwards or backwards in time.
        windows: The windows, in the time of the events.
        config: Settings of `rvtssm label`.

    Returns:
        The detections of each window in sensor pixels, with track ids.
    """
    spec, settings = checkpoint.spec, checkpoint.windows
    tracker = Tracker("bytetrack", spec.num_classes, settings.hz, config.track_memory_s, config.min_score)
    lowest = min(LOWEST_SCORE, config.min_score / 2)  # lowest score of an uncertain box
    postprocess = PostprocessConfig(lowest, score="objectness_times_class", max_detections=_MOST_DETECTIONS)
    detector = StreamDetector(
        checkpoint,
        source.height,
        source.width,
        grid=windows,
        downsample=spec.downsample,
        config=postprocess,
        windows_per_call=_WINDOWS_PER_CALL,
        skip="never",
        tracker=tracker,
    )
    return [window.detections for window in detect(source, detector)]


def _track_seconds(frames: Sequence[Detections]) -> dict[int, float]:
    """Return the time between the first and the last box of every track, by track id; 0 for boxes without a track."""
    times_us = defaultdict(list)
    for frame in frames:
        for track_id in np.unique(np.asarray(frame.track_id)).tolist():
            times_us[track_id].append(frame.t_us)
    return {track_id: (times[-1] - times[0]) / 1e6 if track_id else 0.0 for track_id, times in times_us.items()}


def agreed_boxes(
    forward: Detections,
    backward: Detections,
    seconds: tuple[dict[int, float], dict[int, float]],
    disk_class_ids: np.ndarray,
    config: LabelConfig,
) -> Boxes:
    """Return the boxes of one moment, in order: forward boxes, merged with overlapping backward ones; other boxes.

    Args:
        forward: Detections forwards in time.
        backward: Detections backwards in time.
        seconds: Lengths of the tracks, forwards and backwards, by track id.
        disk_class_ids: Ids of the classes on disk.
        config: Settings of `rvtssm label`.

    Returns:
        (N,) of BOX_DTYPE with `pseudo_score`.
    """
    overlap = pairwise_iou(forward.xyxy, backward.xyxy)
    overlap = np.where(forward.class_id[:, None] == backward.class_id, overlap, 0)
    is_free = np.ones(len(backward), bool)
    rows: list[tuple[np.ndarray, int, float, bool, int]] = []  # box (4,), class, score, whether it is trusted, track
    ids = np.asarray(forward.track_id), np.asarray(backward.track_id)
    for i, row in enumerate(overlap):
        row = np.where(is_free, row, 0)
        has_other = row.max(initial=0) > 0 and row.max() >= config.min_iou
        box, score, length_s = forward.xyxy[i], float(forward.score[i]), seconds[0][int(ids[0][i])]
        if has_other:
            other = int(row.argmax())
            is_free[other] = False
            box = (box + backward.xyxy[other]) / 2
            score = (score + float(backward.score[other])) / 2
            length_s = max(length_s, seconds[1][int(ids[1][other])])
        is_trusted = has_other and score >= config.min_score and length_s >= config.min_track_ms / 1000
        rows.append((box, int(forward.class_id[i]), score, is_trusted, int(ids[0][i])))
    for other in np.flatnonzero(is_free).tolist():
        rows.append((backward.xyxy[other], int(backward.class_id[other]), float(backward.score[other]), False, 0))
    rows = [row for row in rows if row[2] >= config.min_score / 2]
    boxes = np.zeros(len(rows), BOX_DTYPE)
    if rows:
        edges, class_ids, scores, trusted, track_ids = (np.array(column) for column in zip(*rows, strict=True))
        boxes["x"], boxes["y"], boxes["w"], boxes["h"] = xyxy_to_ltwh(edges).T
        boxes["t"], boxes["still_us"], boxes["track_id"] = forward.t_us, -1, track_ids
        boxes["class_id"], boxes["class_confidence"] = disk_class_ids[class_ids], scores
        boxes["pseudo_score"] = np.where(trusted, scores, -scores)
    return boxes


class ReversedRecording(EventSource):
    """The events of a recording in reversed order, between the same first and last time.

    A window [s, e) of the recording becomes [`at(e)`, `at(s)`).
    """

    def __init__(self, recording: Recording) -> None:
        self._recording, self.name = recording, recording.name
        self.height, self.width = recording.height, recording.width
        self._range_us = recording.time_range_us

    @property
    def time_range_us(self) -> tuple[int, int]:
        """The times of the first and the last event."""
        return self._range_us

    def at(self, time_us: int) -> int:
        """Return where the edge of a window lies in the reversed recording. Applied twice, it returns the same time."""
        first_us, last_us = self.time_range_us
        return first_us + last_us + 1 - time_us

    def blocks(self) -> Iterator[Events]:
        """Yield all events in blocks."""
        first_us, last_us = self.time_range_us
        for stop_us in range(last_us + 1, first_us, -_SPAN_US):
            block = self._recording.between(max(first_us, stop_us - _SPAN_US), stop_us)
            if len(block):
                yield Events(
                    first_us + last_us - block.t[::-1],
                    block.x[::-1].copy(),
                    block.y[::-1].copy(),
                    np.uint8(1) - block.p[::-1],
                )
