"""Compare the clock of labels with the clock of events: which labels have no events, and which offset would mend it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rvtssm.records import DatasetSpec
from rvtssm.system.user_error import UserError

_LATE_LABEL_US = 1_000_000  # labels may end this much later than the events, since objects can stand still at the end
_OTHER_UNITS = {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"}  # by their numbers relative to microseconds
_KEY = "dataset.label_offset_us"


@dataclass(frozen=True, slots=True)
class LabelTimes:
    """How many label times of a recording have no events."""

    name: str  # of the recording
    num_times: int
    num_outside: int  # before the first event, or long after the last one
    note: str = ""  # what to say about them, and about times that seem to have another unit

    @classmethod
    def check(
        cls, name: str, times_us: npt.NDArray[np.int64], range_us: tuple[int, int], spec: DatasetSpec
    ) -> "LabelTimes":
        """Compare label times with the first and the last event.

        Args:
            name: The recording.
            times_us: The label times, ascending and not empty.
            range_us: Times of the first and the last event.
            spec: The dataset. A label may be `label_interval_us` later than the last event.

        Raises:
            UserError: All labels lie before the events, or some more than a second after them.
        """
        (first_us, last_us), late_us = range_us, spec.label_interval_us
        where = f"{name} has events from {first_us} to {last_us} us but labels from {times_us[0]} to {times_us[-1]} us"
        unit = unit_advice(int(times_us[-1]), last_us)
        advice = offset_advice(times_us - (spec.label_offset_us or 0), (first_us, last_us + late_us))
        if not first_us <= times_us[-1] <= last_us + _LATE_LABEL_US:
            missing = "events are missing, or the labels are of another recording"
            raise UserError(
                "labels.outside_events", f"{where}; {'; otherwise, '.join(filter(None, (unit, advice))) or missing}"
            )
        is_outside = (times_us < first_us) | (times_us > last_us + late_us)
        num_outside = int(np.count_nonzero(is_outside))
        is_crowded = len(times_us) > 1 and 10 * (times_us[-1] - times_us[0]) < last_us - first_us
        note = ""
        if num_outside:
            missing = "if something moved at these times, the recording lacks its events"
            note = f"{where}, so {num_outside} of {len(times_us)} label times have no events; {advice or missing}"
        elif unit and is_crowded:
            note = f"{where}; {unit}"
        return cls(name, len(times_us), num_outside, note)


def summary(recordings: Sequence[LabelTimes]) -> str:
    """Return the notes of the recordings of a split as one line, with the first as an example; empty without a note.

    Args:
        recordings: The label times of each recording.
    """
    noted = [times for times in recordings if times.note]
    if len(noted) < 2:
        return "".join(times.note for times in noted)
    num_outside = sum(times.num_outside for times in noted)
    num_times = sum(times.num_times for times in noted)
    return (
        f"{num_outside} of {num_times} label times in {len(noted)} of {len(recordings)} recordings have no events or "
        f"seem to have another unit: {noted[0].note}"
    )


def offset_advice(times_us: npt.NDArray[np.int64], range_us: tuple[int, int]) -> str:
    """Return the offset that moves all labels to times with events, in words; empty if none of the usual ones does.

    Labels may count from the first event, or their first time may belong to it.

    Args:
        times_us: The label times as the label files have them, ascending and not empty.
        range_us: The first and the last time at which a label may be.
    """
    first_us, last_us = range_us
    choices = (
        (first_us, "the labels count from the first event"),
        (first_us - int(times_us[0]), "the first label belongs to the first event"),
    )
    for offset_us, reason in choices:
        if offset_us and first_us <= times_us[0] + offset_us and times_us[-1] + offset_us <= last_us:
            return f"if {reason}, give {_KEY}={offset_us}"
    return ""


def unit_advice(last_label_us: int, last_us: int) -> str:
    """Return advice if the labels seem to count time in another unit than the events, otherwise an empty text.

    Args:
        last_label_us: Time of the last label.
        last_us: Time of the last event.
    """
    ratio = last_label_us / max(last_us, 1)
    for factor, unit in _OTHER_UNITS.items():
        if factor / 3 < ratio < 3 * factor:
            return f"label times must be microseconds; these look like {unit}"
    return ""
