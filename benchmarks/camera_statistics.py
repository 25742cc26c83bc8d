"""Events of simulated cameras beside those of real recordings: rate, polarity, intervals and noise, as table and plot.

Intervals are those between two events of a pixel. The quiet pixels are the tenth with the fewest events, of pixels that
have any in recordings of at least a second: what they send is mostly noise. No two recordings show the same scene, so
the numbers say whether the simulated ones lie where real ones do, not more.

    python -m benchmarks.camera_statistics --recordings FOLDER --json FILE [--plot FILE.png] [--number 6]
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.measuring import write_json
from rvtssm.contrib.worlds.generate import open_world_recording
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig
from rvtssm.evaluation.plots import figure_png
from rvtssm.evaluation.result import markdown_table
from rvtssm.readers import open_recording
from rvtssm.readers.recording import join_events
from rvtssm.records import EVENT_SUFFIXES, Events
from rvtssm.synthetic.simulation_config import CAMERAS

LONGEST_US = 2_000_000  # of a recording that is read
NOISE_FROM_US = 1_000_000  # shorter recordings say nothing about noise


@dataclass(frozen=True)
class Statistics:
    """What the events of one recording are like."""

    name: str
    pixels: int
    seconds: float
    rate_hz: float  # events per pixel and second
    brighter_share: float  # of the events
    interval_ms: tuple[float, float, float]  # quantiles 10, 50 and 90 % of the intervals of a pixel
    quiet_hz: float | None  # events per second of a quiet pixel


def statistics(name: str, events: Events, height: int, width: int) -> Statistics:
    """Return the statistics of events on a sensor."""
    pixel = events.y.astype(np.int64) * width + events.x
    seconds = max(float(events.t[-1] - events.t[0]), 1.0) * 1e-6
    order = np.lexsort((events.t, pixel))
    gaps = np.diff(events.t[order])[np.diff(pixel[order]) == 0]
    counts = np.sort(np.bincount(pixel, minlength=height * width))
    counts = counts[counts > 0]
    quantiles = np.quantile(gaps, (0.1, 0.5, 0.9)) / 1e3 if len(gaps) else (np.nan,) * 3
    quiet = float(counts[: max(len(counts) // 10, 1)].mean()) / seconds if 1e6 * seconds >= NOISE_FROM_US else None
    rate = len(events) / seconds / (height * width)
    low, middle, high = (float(value) for value in quantiles)
    return Statistics(name, height * width, seconds, rate, float(events.p.mean()), (low, middle, high), quiet)


def of_real(folder: Path) -> list[Statistics]:
    """Return the statistics of every recording of a folder that can be read."""
    found = []
    for path in sorted(path for path in folder.iterdir() if path.name.endswith(EVENT_SUFFIXES)):
        try:
            recording = open_recording(path)
            first_us, _ = recording.time_range_us
            events = recording.between(first_us, first_us + LONGEST_US)
        except ValueError:
            continue
        if len(events) > 1000:
            found.append(statistics(path.name, events, recording.height, recording.width))
    return found


def of_simulated(number: int) -> list[Statistics]:
    """Return the statistics of a number of open worlds with each camera."""
    found = []
    for name, camera in CAMERAS.items():
        config = OpenWorldConfig(duration_s=1.2, height=240, width=304, ego_motion_share=0.5, camera=camera)
        for index in range(number):
            blocks, _ = open_world_recording(config, "test", index)
            events = join_events(list(blocks))
            if len(events) > 1000:
                found.append(statistics(f"simulated {name} {index}", events, 240, 304))
    return found


def table(rows: list[Statistics]) -> str:
    """Return the rows as Markdown."""
    intervals, rate = "interval 10 / 50 / 90 %, ms", "events per pixel and s"
    cells = [["recording", "pixels", "s", rate, "brighter, %", intervals, "quiet, Hz"]]
    for row in rows:
        numbers = [f"{row.seconds:.2f}", f"{row.rate_hz:.2f}", f"{100 * row.brighter_share:.0f}"]
        gaps = " / ".join(f"{value:.3g}" for value in row.interval_ms)
        cells.append([row.name, str(row.pixels), *numbers, gaps, "" if row.quiet_hz is None else f"{row.quiet_hz:.2f}"])
    return "\n".join(markdown_table(cells, "|---|"))


def draw(real: list[Statistics], simulated: list[Statistics], path: Path) -> None:
    """Write a plot of rate and polarity, and of rate and interval."""
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    axes = figure.subplots(1, 2)
    for rows, label, mark in ((real, "real", "o"), (simulated, "simulated", "x")):
        rates = [row.rate_hz for row in rows]
        axes[0].scatter(rates, [100 * row.brighter_share for row in rows], marker=mark, label=label)
        axes[1].scatter(rates, [row.interval_ms[1] for row in rows], marker=mark, label=label)
    for axis, title in zip(axes, ("brighter events, %", "median interval of a pixel, ms"), strict=True):
        axis.set(xscale="log", xlabel="events per pixel and second", ylabel=title)
        axis.legend()
    axes[1].set_yscale("log")
    path.write_bytes(figure_png(figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--number", type=int, default=6, help="simulated recordings per camera")
    arguments = parser.parse_args()
    real, simulated = of_real(arguments.recordings), of_simulated(arguments.number)
    print(table(real + simulated))
    write_json(arguments.json, [asdict(row) for row in real + simulated])
    if arguments.plot:
        draw(real, simulated, arguments.plot)


if __name__ == "__main__":
    main()
