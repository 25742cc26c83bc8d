"""Plan the windows and labels of a recording before its events are counted, for prepared and for raw data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rvtssm.events.cells import Ints, frame_pixels
from rvtssm.events.frame_counter import FrameCounter
from rvtssm.events.label_rules import clean_boxes, num_thinned
from rvtssm.events.labels import BOX_DTYPE, Boxes, to_labels
from rvtssm.events.windows import free_grid, label_grid
from rvtssm.readers import Recording
from rvtssm.records import DatasetSpec, Labels, Windows, WindowSettings
from rvtssm.system.user_error import UserError

_LATE_LABEL_US = 1_000_000  # labels may end this much later than the events, since objects can stand still at the end
_OTHER_UNITS = {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"}  # by their numbers relative to microseconds


@dataclass(frozen=True)
class SequencePlan:
    """The windows and labels of a recording and the way its events are counted. It can be sent to other processes."""

    recording: Recording
    windows: Windows
    labels: Labels  # in sensor pixels; empty if the recording is planned without boxes
    settings: WindowSettings
    spec: DatasetSpec
    num_thinned: int = 0  # boxes that are left out because of their time

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
        return FrameCounter(self.settings, frame_pixels(*size, self.spec.downsample, rows, columns))

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
        part = replace(self, windows=self.windows[start:stop], labels=self.labels[:0])
        return replace(part, recording=self.recording.part(*part.span_us))

    def check_read(self, num_events: int, first_us: int, last_us: int) -> None:
        """Raise UserError for problems that are only known after all events have been read.

        Args:
            num_events: Number of events in the recording.
            first_us: Time of its first event.
            last_us: Time of its last event.

        Raises:
            UserError: The labels do not fit the times of the events.
        """
        if len(self.labels):
            check_label_times(self.recording, (int(self.labels.t_us[0]), int(self.labels.t_us[-1])), first_us, last_us)


def plan_sequence(
    recording: Recording,
    boxes: Boxes | None,
    spec: DatasetSpec,
    settings: WindowSettings,
    is_train: bool,
    is_read_later: bool = False,
    grid: str = "labels",
    nothing_us: Ints | None = None,
) -> SequencePlan | None:
    """Return the plan of a recording, or None if `boxes` are given, none of them is kept and `nothing_us` is empty.

    Args:
        recording: The recording.
        boxes: (N,) of BOX_DTYPE, class ids as on disk. None plans the free grid without labels.
        spec: The dataset.
        settings: How events become frames.
        is_train: Whether the boxes are used for training, see `clean_boxes`.
        is_read_later: Read only the first events now. The caller reads all events and then calls `check_read`.
        grid: `labels`: a window ends at every label. `free`: windows at the exact stride; a label belongs to the first
            window that does not end before it.
        nothing_us: Further label times, (N,) int64, at which there is no object.

    Raises:
        UserError: The recording cannot be used.
    """
    num_left_out = 0
    if boxes is not None:
        num_left_out = num_thinned(boxes, spec, settings.convention, is_train)
        boxes = clean_boxes(boxes, spec, settings.convention, is_train)
        label_us = boxes["t"] if nothing_us is None else np.union1d(boxes["t"], nothing_us)
        if not len(label_us):
            return None
    if is_read_later and boxes is not None:
        first = next(recording.iterate(), None)
        if first is None:
            raise recording.error_without_events()
        first_us = int(first.t[0])
    else:
        first_us, last_us = recording.time_range_us
        if boxes is not None:
            check_label_times(recording, (int(label_us[0]), int(label_us[-1])), first_us, last_us)
    if boxes is None:
        boxes, windows = np.empty(0, BOX_DTYPE), free_grid(first_us, last_us, settings)
    elif grid == "free":
        windows = free_grid(first_us, max(last_us, int(label_us[-1])), settings)
    else:
        # RVT never starts the first window at 0, no matter when the first event comes.
        start_us = 1 if settings.convention == "rvt" else first_us
        try:
            windows = label_grid(label_us, start_us, settings)
        except UserError as error:
            raise UserError(
                f"{recording.path} has events from {first_us} us and labels from {label_us[0]} to {label_us[-1]} us: "
                f"{error}, or the two count time from different moments: move labels to the clock of the events"
            ) from None
    labels = to_labels(boxes, windows, is_exact=grid == "labels")
    return SequencePlan(recording, windows, labels, settings, spec, num_left_out)


def check_label_times(recording: Recording, label_us: tuple[int, int], first_us: int, last_us: int) -> None:
    """Raise UserError if all labels lie before the events of their recording, or some long after them.

    Args:
        recording: The recording, for messages.
        label_us: Times of the first and the last label.
        first_us: Time of the first event.
        last_us: Time of the last event.
    """
    first_label_us, last_label_us = label_us
    if first_us <= last_label_us <= last_us + _LATE_LABEL_US:
        return
    advice = unit_advice(last_label_us, last_us) or "events are missing, or the labels are of another recording"
    if not unit_advice(last_label_us, last_us) and (last_label_us < first_us or first_label_us > last_us):
        advice = (
            "labels are of another recording, or count time from another moment than the events: add "
            f"{first_us - first_label_us} us to label times if the first label belongs to the first event"
        )
    raise UserError(
        f"{recording.path} has events from {first_us} to {last_us} us but labels from {first_label_us} to "
        f"{last_label_us} us; {advice}"
    )


def unit_advice(last_label_us: int, last_us: int) -> str:
    """Return advice if the labels seem to count time in another unit than the events, otherwise an empty text.

    Args:
        last_label_us: Time of the last label.
        last_us: Time of the last event.
    """
    ratio = last_label_us / max(last_us, 1)
    found = [unit for factor, unit in _OTHER_UNITS.items() if factor / 3 < ratio < 3 * factor]
    return f"label times must be microseconds; these look like {found[0]}" if found else ""
