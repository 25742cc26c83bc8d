"""Compare the events of recordings, real beside rendered, and measure the rasteriser.

    python -m benchmarks.worlds statistics --json FILE REAL [REAL ...] [--pedro PEDRO] --against FOLDER [FOLDER ...]
    python -m benchmarks.worlds raster --json FILE --assets MODELS
    python -m benchmarks.worlds picture --assets MODELS --real RECORDING
    python -m benchmarks.worlds gate --json FILE --assets MODELS --folder DIR --footage FOOTAGE --pedro PEDRO

`statistics` prints one row per recording, and one per folder: the median over its recordings.
`raster` prints frames per second of processor time, for 304 x 240 and 640 x 480 pixels. `gate` trains on rendered,
painted and mixed recordings and scores the weights on real pixels. It takes hours and goes on where it stopped
(`gate.py`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rvtssm
from benchmarks.scan import machine
from benchmarks.transfer.__main__ import PEDRO
from benchmarks.worlds.gate import Gate
from benchmarks.worlds.picture import write_picture
from benchmarks.worlds.statistics import COLUMNS, statistics
from rvtssm.contrib.worlds.rendered.assets import read_assets
from rvtssm.contrib.worlds.rendered.raster import Light, find_nearest, mark_shadows, new_buffers, shade
from rvtssm.contrib.worlds.rendered.scene import RenderedScene
from rvtssm.contrib.worlds.rendered.scene_building import build_scene
from rvtssm.contrib.worlds.rendered.scene_kinds import KINDS
from rvtssm.contrib.worlds.worlds_config import WorldConfig
from rvtssm.datasets.tree import find_event_files
from rvtssm.models.weight_files import DEFAULT_WEIGHTS
from rvtssm.readers.recording import Recording
from rvtssm.system.files import atomic_file
from rvtssm.system.user_error import UserError

SCENES = ("canyon", "suburb", "pavement")
SIZES = ((240, 304), (480, 640))
FRAMES = 12


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write it with the machine and the commit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.worlds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    of_events = parts.add_parser("statistics")
    of_events.add_argument("recordings", nargs="+", type=Path)
    of_events.add_argument("--against", nargs="*", type=Path, default=[], help="folders of generated recordings")
    of_events.add_argument("--pedro", type=Path, help="as for benchmarks.transfer")
    of_events.add_argument("--height", type=int, help="of the sensor of recordings that do not say it")
    of_events.add_argument("--width", type=int)
    of_events.add_argument("--json", type=Path, required=True)
    of_frames = parts.add_parser("raster")
    of_frames.add_argument("--assets", required=True)
    of_frames.add_argument("--json", type=Path, required=True)
    of_picture = parts.add_parser("picture")
    of_picture.add_argument("--assets", required=True)
    of_picture.add_argument("--real", type=Path, required=True, help="a recording whose licence allows to show it")
    of_picture.add_argument("--out", type=Path, default=Path("docs/assets/rendered_world.png"))
    of_trainings = parts.add_parser("gate")
    of_trainings.add_argument("--assets", required=True)
    of_trainings.add_argument("--folder", type=Path, required=True, help="for all that is made on the way")
    of_trainings.add_argument("--footage", type=Path, help="as for benchmarks.transfer")
    of_trainings.add_argument("--pedro", type=Path, help="as for benchmarks.transfer")
    of_trainings.add_argument("--drive", type=Path, help="a recording of a drive")
    of_trainings.add_argument("--boxes", type=Path, help="boxes of its vehicles; track 1 is the car ahead")
    of_trainings.add_argument("--clips", type=int, default=64)
    of_trainings.add_argument("--steps", type=int, default=2000)
    of_trainings.add_argument("--start", default=DEFAULT_WEIGHTS, help="a name or a file of weights")
    of_trainings.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.part == "picture":
        write_picture(options.assets, options.real, options.out)
        return
    if options.part == "raster":
        rows = raster_rows(options.assets)
    elif options.part == "gate":
        given = {name: value for name, value in vars(options).items() if name not in ("part", "json")}
        rows = Gate(**given).run()
    else:
        size = (options.height, options.width)
        rows = recording_rows(options.recordings, size)
        if options.pedro is not None:
            windows = sorted(options.pedro.glob("**/numpy/*/*.npy"))
            rows += median_rows("PEDRo", windows, PEDRO.sensor_hw)
        for folder in options.against:
            rows += median_rows(folder.name, find_event_files(folder))
    print_table(rows)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(options.json) as staged:
        staged.write_text(json.dumps({**machine("cpu"), "rows": rows}, indent=1) + "\n")


def recording_rows(paths: Sequence[Path], size: tuple[int | None, int | None] = (None, None)) -> list[dict[str, Any]]:
    """Return the numbers of each recording; a file that cannot be read is named and left out.

    Args:
        paths: The files.
        size: Height and width of the sensor of files that do not say it.
    """
    rows = []
    for path in paths:
        try:
            recording = _opened(path, size)
            row = statistics(recording.read(), recording.height, recording.width)
        except (UserError, ValueError) as error:
            print(f"left out: {' '.join(str(error).split())}")
            continue
        rows.append({"recording": path.name, **row})
    return rows


def _opened(path: Path, size: tuple[int | None, int | None]) -> Recording:
    try:
        return rvtssm.open(path)
    except UserError:
        if size[0] is None:
            raise
        return rvtssm.open(path, *size)


def median_rows(
    name: str, paths: Sequence[Path], size: tuple[int | None, int | None] = (None, None)
) -> list[dict[str, Any]]:
    """Return a row with the median of each number over recordings, or no row if none of them can be read."""
    found = recording_rows(paths, size)
    if not found:
        print(f"left out: {name} has no recordings; of a dataset, name a folder such as train/")
        return []
    medians = np.median([list(row.values())[1:] for row in found], axis=0)
    named = {"recording": f"{name}, median of {len(found)}"}
    return [{**named, **dict(zip(COLUMNS, map(float, medians), strict=True))}]


def raster_rows(assets: str) -> list[dict[str, Any]]:
    """Return the milliseconds of processor time of each step of a frame, and frames per second."""
    rows = []
    models = read_assets(assets)
    for height, width in SIZES:
        for name in SCENES:
            kind = KINDS[name]
            world = WorldConfig(min_lines=height, max_lines=height)
            rng = np.random.default_rng(3)
            scene = build_scene(models, kind, kind.cameras[0], (height, width), 2_000_000, world, rng)
            costs = np.median([frame_ms(scene, number / 10) for number in range(FRAMES)], axis=0)
            steps = dict(zip(("move", "nearest", "shadows", "shade"), map(float, costs), strict=True))
            row = {"recording": f"{name}, {width} x {height}", "triangles": len(scene.packed.corners)}
            rows.append({**row, **steps, "frames_per_s": float(1000 / costs.sum())})
    return rows


def frame_ms(scene: RenderedScene, t_s: float) -> list[float]:
    """Return the milliseconds of processor time of the four steps of a frame."""
    buffers = new_buffers(scene.height, scene.width, len(scene.packed.corners) + 1)
    image = np.zeros((scene.height, scene.width), np.float32)
    light: Light = scene.light
    eye = scene.eye(t_s)
    times = [time.process_time()]
    for actor in scene.actors:
        actor.move(scene.packed, t_s)
    times.append(time.process_time())
    find_nearest(scene.packed, eye, buffers, -1)
    times.append(time.process_time())
    mark_shadows(scene.packed, eye, light.sun, buffers)
    times.append(time.process_time())
    shade(image, scene.packed, eye, light, buffers)
    times.append(time.process_time())
    return [float(step) for step in np.diff(times) * 1000]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table of Markdown."""
    if not rows:
        return
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|---|" + "--:|" * (len(names) - 1))
    for row in rows:
        cells = [value if isinstance(value, str) else f"{value:.3g}" for value in row.values()]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
