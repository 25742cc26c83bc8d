"""Plan the windows and labels of a recording before its events are counted, for prepared and for raw data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rvtssm.events.cells import Ints, frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.events.label_notes import NOTHING, LabelTimes, Noticed
from rvtssm.events.label_rules import nothing_times_us, thinned_boxes, unusable_boxes, usable_boxes
from rvtssm.events.labels import BOX_DTYPE, Boxes, nothing_at, to_labels
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.readers import Recording
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings
from rvtssm.system.user_error import UserError

_NO_TIMES = np.zeros(0, np.int64)


@dataclass(frozen=True)
class SequencePlan:
    """The windows and labels of a recording and the way its events are counted. It can be sent to other processes."""

    recording: Recording
    windows: Windows
    labels: Labels  # in sensor pixels; empty if the recording is planned without boxes
    settings: WindowSettings
    spec: DatasetSpec
    noticed: Noticed = NOTHING  # without what only reading all events shows

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Shape (C, h, w) of a frame."""
        return self.settings.num_channels, self.spec.frame_height, self.spec.frame_width

    def counter(self, rows: Ints | None = None, columns: Ints | None = None) -> FrameCounter:
        """Return a new counter for the frames of this plan.

        Args:
            rows: Which row of the downsampled sensor each row of the frame shows, see `frame_pixels`. None: all in
                order.
            columns: The same for columns.
        """
        size = self.recording.height, self.recording.width
        return FrameCounter(
            self.settings, frame_pixels(*size, self.spec.downsample, rows, columns, self.settings.reduce)
        )

    @property
    def span_us(self) -> tuple[int, int]:
        """The half-open interval of the events that the windows need, including `WindowSettings.warmup_us`.

        It is one microsecond longer than the windows, because those of convention `rvt` are closed.
        """
        first_us = int(self.windows.bounds_us[:, 0].min()) - self.settings.warmup_us
        return first_us, int(self.windows.ends_us[-1]) + 1

    def section(self, start: int, stop: int) -> SequencePlan:
        """Return the plan of the windows [start, stop), without labels.

        Its size does not depend on the length of the recording.
        """
        no_labels = replace(self.labels[:0], empty_us=_NO_TIMES)
        part = replace(self, windows=self.windows[start:stop], labels=no_labels)
        return replace(part, recording=self.recording.part(*part.span_us))

    def noticed_within(self, range_us: tuple[int, int]) -> Noticed:
        """Return what was noticed, with how the label times lie to the events.

        Args:
            range_us: Times of the first and the last event.

        Raises:
            UserError: The labels do not fit the times of the events.
        """
        times_us = np.union1d(self.labels.t_us, self.labels.empty_us)
        if not len(times_us):
            return self.noticed
        return replace(self.noticed, times=LabelTimes.check(str(self.recording.path), times_us, range_us, self.spec))


def _without_others(boxes: Boxes, spec: DatasetSpec) -> Boxes:
    """Return boxes with nothing in place of objects that are no class, where an image without an object is scored."""
    if not spec.scores_empty_images:
        return boxes
    is_other = ~np.isin(boxes["class_id"], spec.disk_class_ids)
    seen = boxes.copy()
    seen[is_other] = nothing_at(boxes["t"][is_other])
    return seen


def plan_sequence(
    recording: Recording,
    boxes: Boxes | None,
    spec: DatasetSpec,
    settings: WindowSettings,
    is_train: bool,
    is_read_later: bool = False,
    grid: str = "labels",
) -> SequencePlan | None:
    """Return the plan of a recording, or None if `boxes` are given, but no label time is kept.

    Label times at which there is no object are kept for training, and for evaluation if the spec scores such images.

    Args:
        recording: The recording.
        boxes: (N,) of BOX_DTYPE, class ids as on disk. None plans the free grid without labels.
        spec: The dataset.
        settings: How events become frames.
        is_train: Whether the boxes are used for training, see `clean_boxes`.
        is_read_later: Read only the first events now. The caller reads all events and calls `noticed_within`.
        grid: `labels`: a window ends at every label. `free`: windows at the exact stride; a label belongs to the first
            window that does not end before it.

    Raises:
        UserError: The recording cannot be used.
    """
    noticed = Noticed()
    empty_us = _NO_TIMES
    if boxes is not None:
        # Which boxes and which empty images are scored.
        usable = usable_boxes(boxes, spec, settings.convention, is_train)
        kept = thinned_boxes(usable, spec, settings.convention)
        unusable = unusable_boxes(boxes, spec, is_train)
        noticed = Noticed.of(boxes, usable, len(kept), unusable, settings.convention == "exact")
        if is_train or spec.scores_empty_images:
            empty_us = nothing_times_us(_without_others(boxes, spec), kept["t"])
        boxes = kept
        label_us = np.union1d(boxes["t"], empty_us)
        if not len(label_us):
            return None
    if is_read_later and boxes is not None:
        # A stream: only the first event is known.
        first = next(recording.iterate(), None)
        if first is None:
            raise recording.error_without_events()
        first_us = int(first.t[0])
    else:
        first_us, last_us = recording.time_range_us
        if boxes is not None:
            LabelTimes.check(str(recording.path), label_us, (first_us, last_us), spec)
    # The grid: free without labels, and at label times with them.
    if boxes is None:
        boxes = np.empty(0, BOX_DTYPE)
        windows = free_grid(first_us, last_us, settings)
    elif grid == "free":
        windows = free_grid(first_us, max(last_us, int(label_us[-1])), settings)
    else:
        # RVT never starts the first window at 0, no matter when the first event comes.
        start_us = 1 if settings.convention == "rvt" else first_us
        try:
            windows = label_grid(label_us, start_us, settings)
        except UserError as error:
            times = f"events start at {first_us} us, and labels are from {label_us[0]} to {label_us[-1]} us: {error}"
            advice = "or the two count time from different moments: move the labels, dataset.label_offset_us=from_start"
            raise UserError(error.key, name=recording.path, found=times, advice=advice) from None
    labels = replace(to_labels(boxes, windows, is_exact=grid == "labels"), empty_us=empty_us)
    return SequencePlan(recording, windows, labels, settings, spec, noticed)
