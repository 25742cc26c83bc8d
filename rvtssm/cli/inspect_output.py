"""What `rvtssm inspect` shows: tables of a recording, and of a dataset by split, class and size, and a few labelled
frames.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal
from rich.table import Table

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.checks.inspect_dataset import SIZES, TreeInspection
from rvtssm.checks.inspect_recording import REPEATED_WITHIN_US, RecordingInspection
from rvtssm.cli.console import console, say
from rvtssm.datasets.tree import RawRecording, find_recordings
from rvtssm.drawing import to_png
from rvtssm.drawing.draw import SHOWN_US, draw_frame, strip_of
from rvtssm.events.label_rules import with_class_indices
from rvtssm.events.labels import find_nothing, ltwh_of
from rvtssm.readers import open_with
from rvtssm.records import DatasetSpec, Detections
from rvtssm.system.user_error import UserError

_MOST_HOT_PIXELS = 5  # that the table names
_MUCH_REPEATED = 0.05  # a share of repeated events from which the table names the filter


def recording_table(inspection: RecordingInspection) -> Table:
    """Return what a recording holds."""
    recording = inspection.recording
    hot = inspection.hot_pixels
    table = _two_columns(recording.name)
    faults = recording.faults
    # What the file is.
    table.add_row("format", f"{recording.format}, {decimal(recording.num_bytes)}")
    table.add_row("sensor", f"{recording.width} x {recording.height}")
    table.add_row("time", f"{inspection.t_first_us} to {inspection.t_last_us} us, {inspection.duration_us / 1e6:.3f} s")
    table.add_row("events", f"{inspection.num_events}, {recording.num_bytes / inspection.num_events:.2f} bytes each")
    # How many events there are, and when.
    bins = f"busiest {inspection.bin_us / 1000:g} ms"
    table.add_row(
        "rate", f"{inspection.mean_rate / 1e6:.3f} million per second, {inspection.peak_rate / 1e6:.3f} in the {bins}"
    )
    table.add_row("polarity", f"{100 * inspection.num_on / inspection.num_events:.1f} % brighter")
    table.add_row("longest gap", f"{inspection.longest_gap_us} us, it starts at {inspection.longest_gap_at_us} us")
    # What is wrong with them.
    table.add_row("time backwards", f"{faults.backward_steps} events, moved to the time of the event before")
    table.add_row("out of frame", f"{faults.out_of_frame} events, left out")
    table.add_row("unreadable", f"{faults.unreadable} events, left out")
    table.add_row("other clock", f"{faults.other_clock} events, left out")
    table.add_row("cut off", f"{faults.truncated_bytes} bytes after the last whole event")
    if refusal := recording.refusal(inspection.num_events):
        table.add_row("other commands", f"refuse it, since it {refusal}")
    pixels = f"{len(hot)} with {100 * hot[:, 2].sum() / inspection.num_events:.1f} % of the events"
    if len(hot):
        pixels += f" ({'; '.join(f'x={x} y={y}: {count}' for x, y, count in hot[:_MOST_HOT_PIXELS])})"
    table.add_row("hot pixels", pixels)
    share = inspection.num_repeated / inspection.num_events
    repeated = f"{inspection.num_repeated} events, at most {REPEATED_WITHIN_US} us after one of their pixel"
    if share > _MUCH_REPEATED:
        only_these = f"filters=[{{refractory:{{within_ms:{REPEATED_WITHIN_US / 1000:g}}}}}]"
        repeated += f": {100 * share:.1f} %, {only_these} leaves them out"
    table.add_row("repeated", repeated)
    return table


def print_tree(inspection: TreeInspection) -> None:
    """Print what a dataset holds: its settings, its splits, its boxes by size, and what its files do not say."""
    title = f"{inspection.name}: {inspection.kind} {inspection.dataset}"
    if inspection.settings:
        table = _two_columns(title)
        for name, value in inspection.settings.items():
            values = value if isinstance(value, list) else [value]
            table.add_row(name.replace("_", " "), ", ".join(map(str, values)))
        console.print(table)
    console.print(_splits(inspection, title))
    console.print(_boxes(inspection))
    for note in inspection.notes:
        say(note, style="yellow")
    if inspection.kind == "raw" and any(inspection.labels(split).any() for split in inspection.splits):
        say(
            "these are all boxes of the label files; training and scoring leave out duplicates, and boxes of which the "
            "sensor sees nothing or too little"
        )


def _splits(inspection: TreeInspection, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", style="bold")
    columns = []
    for split in inspection.splits:
        table.add_column(split or "file", justify="right")
        columns.append(_column(inspection.totals(split)))
    # raw recordings have no windows, and only histograms tell the number of events
    needed = {"windows": "windows", "events": "events", "million events per second": "events"}
    for name in columns[0]:
        if name not in needed or any(column[needed[name]] for column in columns):
            table.add_row(name, *(str(column[name]) for column in columns))
    return table


def _column(totals: dict[str, int]) -> dict[str, Any]:
    seconds = totals["duration_us"] / 1e6
    return {
        "recordings": totals["recordings"],
        "size": decimal(totals["num_bytes"]),
        "minutes": f"{seconds / 60:.2f}",
        "events": totals["num_events"],
        "million events per second": f"{totals['num_events'] / max(seconds, 1e-6) / 1e6:.3f}",
        "windows": totals["num_windows"],
        "events repaired": totals["repaired"],
        "label times": totals["num_label_times"],
    }


def _boxes(inspection: TreeInspection) -> Table:
    table = Table(title="boxes by area (COCO)", title_justify="left")
    for name in ("split", "class"):
        table.add_column(name)
    for name in SIZES:
        table.add_column(name, justify="right")
    for split in inspection.splits:
        for name, row in zip(inspection.class_names, inspection.labels(split).tolist(), strict=True):
            table.add_row(split or "file", name, *map(str, row))
    return table


def _two_columns(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


_NUM_FRAMES = 4  # of a split


def labelled_frames(raw_dir: Path, spec: DatasetSpec, splits: Sequence[str]) -> dict[str, bytes]:
    """Return a strip of labelled frames as PNG for every split that has labels, evenly spread over its recordings.

    Each frame shows the events of the last 50 ms before a label time and the boxes as they are in the label file. Boxes
    of a detector that are uncertain have classes of their own, such as `person, uncertain`.
    Recordings that cannot be read are left out.
    """
    strips = {}
    for split in splits:
        labelled = [recording for recording in find_recordings(raw_dir, split, spec) if recording.labels is not None]
        pictures: list[np.ndarray] = []
        for i in range(_NUM_FRAMES if labelled else 0):
            # Spread over the recordings, and over the time of each.
            place = (i + 0.5) / _NUM_FRAMES * len(labelled)
            try:
                picture = _labelled_frame(labelled[int(place)], spec, place % 1)
            except (UserError, OSError):
                continue
            # One strip holds pictures of one size.
            if picture is not None and len({picture.shape, *(other.shape for other in pictures)}) == 1:
                pictures.append(picture)
        if pictures:
            strips[split] = to_png(strip_of(pictures))
    return strips


def _labelled_frame(recording: RawRecording, spec: DatasetSpec, share: float) -> np.ndarray | None:
    """Draw the label time at a share of all label times of a recording; None if it has no labels."""
    boxes = with_class_indices(recording.read_boxes(spec), spec)
    boxes = boxes[~find_nothing(boxes)]
    if not len(boxes):
        return None
    # The label time at this share of the recording.
    times_us = np.unique(boxes["t"])
    t_us = int(times_us[int(share * len(times_us))])
    boxes = boxes[boxes["t"] == t_us]
    # The events that ended at that time, as counts per polarity and pixel.
    with closing(open_with(recording.events_path, spec.read_options)) as events:
        shown = events.between(t_us - SHOWN_US, t_us)
        counts = np.zeros((2, events.height, events.width), np.uint32)
    np.add.at(counts, (shown.p, shown.y, shown.x), 1)
    ltwh = ltwh_of(boxes)
    names = spec.class_names
    class_id = boxes["class_id"].astype(np.int64)
    is_uncertain = boxes["pseudo_score"] < 0
    # Uncertain boxes are drawn as classes of their own.
    if is_uncertain.any():
        class_id[is_uncertain] += len(names)
        names += tuple(f"{name}, uncertain" for name in names)
    drawn = Detections(ltwh_to_xyxy(ltwh), np.ones(len(boxes), np.float32), class_id, t_us)
    caption = f"{recording.name}: labels at {t_us} us"
    return draw_frame(counts, drawn, None, names, caption=caption, has_scores=False)
