"""What `rvtssm inspect` prints: tables of a recording, and of a dataset by split, class and size."""

from typing import Any

from rich.filesize import decimal
from rich.table import Table

from rvtssm.checks.inspect_dataset import SIZES, TreeInspection
from rvtssm.checks.inspect_recording import RecordingInspection
from rvtssm.cli.console import console, say

_MOST_HOT_PIXELS = 5  # that the table names


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
