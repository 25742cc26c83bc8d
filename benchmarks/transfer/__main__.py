"""Scores weights that were trained on simulation on what they never saw.

    git clone https://github.com/rockkingjy/OpenTracker FOOTAGE/OpenTracker
    git clone https://github.com/ZZZZZZZJJHHH/FrameDifference FOOTAGE/FrameDifference
    python -m benchmarks.transfer --json FILE --footage FOOTAGE [--checkpoint NAME] [--pedro DIR] [--recordings DIR]
    python -m benchmarks.transfer --json FILE --footage FOOTAGE --finetune 10,50,200 --steps N [key=value ...]

The parts: `generated`, the test split of the recipe street_tiny, from `--raw` or new; `footage`, real streets that
`rvtssm simulate` turns into events; `pedro`, windows of the dataset PEDRo; `empty`, a camera before a scene in which
nothing moves; `recordings`, files without labels, of which pictures are written. Everything is done once per reduction
of the frame, and footage also at each of `--rates`, with windows of both lengths, and with scores averaged over each of
`--smooth`. `--finetune` also trains on labelled windows of the footage. What FILE holds is not done again. Data,
weights and pictures are kept below `--folder`.

The part `apart` is footage that is held apart: no choice may look at it. It is scored only if `--only` names it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scan import machine
from benchmarks.transfer.finetune import STARTS, finetune
from benchmarks.transfer.footage import FOOTAGE, Footage, Places, find_places, simulate_footage, simulate_still
from benchmarks.transfer.scoring import LabelledRecording, read_split, score, watch
from benchmarks.transfer.transfer_tables import tables
from rvtssm.cli.main import compose
from rvtssm.contrib.worlds.generate import generate
from rvtssm.datasets import build_spec, custom
from rvtssm.datasets.tree import find_event_files
from rvtssm.export.exported import read_weights_file
from rvtssm.models.checkpoint import weights_digest
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.weight_files import DEFAULT_WEIGHTS
from rvtssm.system.files import atomic_file

PARTS = ("generated", "footage", "pedro", "empty", "recordings")
APART = "apart"  # the part that is scored only if it is named
EMPTY = ("davis346", "gen1", "imx636")  # cameras before the empty scene
# The windows of PEDRo are single ones of 40 ms, so that the first labels count.
PEDRO = replace(
    custom.SPEC,
    **{"height": 260, "width": 346, "class_names": ("person",), "label_interval_us": 40_000},
    **{"boxes_suffix": ".xml", "events_dir": "numpy", "boxes_dir": "xml"},
)
PEDRO_HZ = 25.0
GENERATED = ("experiment=street_worlds",)

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """Some rows of the result: what they are of, and how they are made."""

    key: dict[str, Any]
    make: Callable[[], Rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the file does not hold yet, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--checkpoint", default=DEFAULT_WEIGHTS, help="a name or a file")
    parser.add_argument("--against", help="other weights, over which gains are told with intervals")
    parser.add_argument("--footage", type=Path, help="a folder with one sub-folder per clone")
    parser.add_argument("--pedro", type=Path, help="a folder with numpy/SPLIT and xml/SPLIT, or with examples/")
    parser.add_argument("--recordings", type=Path, help="a folder of recordings without labels")
    parser.add_argument("--raw", type=Path, help="recordings of street_tiny; by default its test split is generated")
    parser.add_argument("--folder", type=Path, default=Path("outputs/transfer"), help="for what is made on the way")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of the parts, also {APART}, separated by commas")
    parser.add_argument("--reductions", default="1,2,3", help="of the frame: full size, half, a third")
    parser.add_argument("--rates", default="", help="other rates in Hz for the footage, such as 100,200")
    parser.add_argument(
        "--smooth", default="", help="seconds over which scores are averaged along tracks, such as 0.1,0.2"
    )
    parser.add_argument("--sensor", default="davis346", help="the camera that sees the footage")
    parser.add_argument("--finetune", default="", help="numbers of labelled windows, such as 10,50,200")
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("overrides", nargs="*", help="changes of the recipe of the trainings")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in (*PARTS, APART)]:
        parser.error(f"--only: there is no part {unknown[0]!r}; choose from {', '.join((*PARTS, APART))}")
    checkpoint = read_weights_file(options.checkpoint)
    settings = {"weights": options.checkpoint, "weights_sha256": weights_digest(checkpoint.detector.state_dict())}
    settings |= {"note": checkpoint.note, "sensor": options.sensor}
    options.against = options.against and read_weights_file(options.against)
    if options.against:
        settings["against"] = weights_digest(options.against.detector.state_dict())
    result: dict[str, Any] = {"settings": settings, **machine(checkpoint.detector.device.type), "rows": []}
    if options.json.exists():
        result = json.loads(options.json.read_text())
        if result["settings"] != settings:
            raise SystemExit(f"{options.json} holds {result['settings']}, not {settings}; name another file")
    for job in jobs(options, parts, checkpoint):
        if not any(job.key.items() <= row.items() for row in result["rows"]):
            try:
                made = job.make()
            except (ValueError, OSError) as error:
                print(f"left out: {' '.join(map(str, job.key.values()))}: {' '.join(str(error).split())}")
                continue
            for row in made:
                result["rows"].append({**job.key, **{name: _plain(value) for name, value in row.items()}})
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(options.json) as staged:
                staged.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(tables(result["rows"])))


def jobs(options: argparse.Namespace, parts: Sequence[str], checkpoint: LoadedCheckpoint) -> Iterator[Job]:
    """Yield what there is to do. What is missing is said in one line."""
    folder, reductions = options.folder.resolve(), [int(number) for number in options.reductions.split(",")]
    if "generated" in parts:

        def generated() -> list[LabelledRecording]:
            raw = options.raw or generate_test(folder / "generated")
            return read_split(raw, "test", build_spec(compose([*GENERATED], "generate").dataset), checkpoint)

        yield from scored("generated", "street_tiny", generated, checkpoint, reductions, options, data=options.raw)
    for part in ("footage", APART):
        if part in parts:
            for footage, places in clones(options.footage, held_apart=part == APART):
                yield from of_footage(part, footage, places, options, checkpoint, reductions)
    if "pedro" in parts and _is_there(options.pedro, "--pedro"):
        windows = partial(read_pedro, options.pedro, checkpoint)
        yield from scored("pedro", "pedro", windows, checkpoint, reductions, options, 0, options.pedro)
    watched: list[tuple[str, str, Callable[[], Path]]] = []
    if "empty" in parts:
        watched += [("empty", f"still {name}", lambda name=name: simulate_still(folder, name)) for name in EMPTY]
    if "recordings" in parts and _is_there(options.recordings, "--recordings"):
        files = find_event_files(options.recordings)
        watched += [("recordings", file.name, lambda file=file: file) for file in files]
    for part, name, path in watched:
        for number in reductions:
            out = folder / "seen" / name / f"reduced_by_{number}"
            key = {"part": part, "source": name, "reduction": number}
            key |= {"data": str(options.recordings)} if part == "recordings" else {}
            yield Job(key, lambda path=path, number=number, out=out: [watch(checkpoint, path(), number, out)])


def clones(folder: Path | None, *, held_apart: bool) -> Iterator[tuple[Footage, Places]]:
    """Yield the sequences whose clones are in the folder, and say which are missing."""
    if not _is_there(folder, "--footage"):
        return
    for footage in FOOTAGE:
        if footage.held_apart != held_apart:
            continue
        if places := find_places(folder, footage):
            yield footage, places
        else:
            labels = f"{footage.labels_clone or footage.clone}/{footage.labels}"
            print(f"missing in {folder}: {footage.clone}/{footage.pictures} or {labels}")


def of_footage(
    part: str,
    footage: Footage,
    places: Places,
    options: argparse.Namespace,
    checkpoint: LoadedCheckpoint,
    reductions: Sequence[int],
) -> Iterator[Job]:
    """Yield the scores of one sequence, and those after trainings on some of its windows if it is not held apart."""
    folder, made = options.folder.resolve(), dict[str, Any]()

    def tree() -> tuple[Path, dict[int, np.ndarray]]:
        if not made:
            made["tree"] = simulate_footage(footage, places, folder, options.sensor)
        return made["tree"]

    def recordings(hz: float | None = None, window: str = "slide") -> list[LabelledRecording]:
        where, unsure = tree()
        spec = custom.read_spec(where)
        return read_split(where, "test", spec, checkpoint, unsure=unsure, hz=hz, window=window)

    yield from scored(part, footage.name, recordings, checkpoint, reductions, options)
    for hz, window in product(filter(None, options.rates.split(",")), ("slide", "shrink")):
        read = partial(recordings, float(hz), window)
        yield from scored(part, f"{footage.name} at {hz} Hz, windows {window}", read, checkpoint, reductions, options)
    for smooth_s in filter(None, options.smooth.split(",")):
        source = f"{footage.name}, scores averaged over {smooth_s} s"
        yield from scored(part, source, recordings, checkpoint, reductions, options, smooth_s=float(smooth_s))
    if not options.finetune or footage.held_apart:
        return
    key = {"part": "finetune", "source": footage.name, "steps": options.steps, "overrides": options.overrides}

    sha256 = weights_digest(checkpoint.detector.state_dict())  # a run of other weights is not continued

    def train(windows: int, start: str) -> Rows:
        where, unsure = tree()
        words = hashlib.sha256(json.dumps(options.overrides).encode()).hexdigest()[:8]
        own = folder / "finetune" / f"{footage.name}_{options.sensor}_{options.steps}_{sha256[:8]}_{words}"
        what = options.checkpoint, windows, start, options.steps, own, unsure, options.overrides
        return finetune(where, checkpoint, *what)

    yield Job(key | {"windows": 0, "start": "weights"}, lambda: train(0, "weights"))
    for windows in (int(number) for number in options.finetune.split(",")):
        for start in STARTS:
            yield Job(
                key | {"windows": windows, "start": start}, lambda windows=windows, start=start: train(windows, start)
            )


def scored(
    part: str,
    source: str,
    read: Callable[[], list[LabelledRecording]],
    checkpoint: LoadedCheckpoint,
    reductions: Sequence[int],
    options: argparse.Namespace,
    skip_us: int | None = None,
    data: Path | None = None,
    smooth_s: float = 0.0,
) -> Iterator[Job]:
    """Yield the scores of labelled recordings at each reduction. They are read once, from `data` if that is given."""
    read_already: list[list[LabelledRecording]] = []

    def make(reduction: int) -> Rows:
        if not read_already:
            read_already.append(read())
        told = {"skip_us": skip_us, "smooth_s": smooth_s, "against": options.against}
        return score(checkpoint, read_already[0], reduction, **told)

    for number in reductions:
        key = {"part": part, "source": source, "reduction": number} | ({"data": str(data)} if data else {})
        yield Job(key, lambda number=number: make(number))


def generate_test(raw: Path) -> Path:
    """Return the folder with the test split of the recipe, which is generated if it is not complete."""
    words = [*GENERATED, "synthetic.num_train=0", "synthetic.num_val=0"]
    generate(compose([*words, f"dataset.raw_dir={raw}"], "generate"))
    return raw


def read_pedro(folder: Path, checkpoint: LoadedCheckpoint) -> list[LabelledRecording]:
    """Return all labelled windows of PEDRo, each of which is a recording, in `folder` or its `examples`."""
    folder = folder / "examples" if (folder / "examples" / "numpy").is_dir() else folder
    splits = sorted(path.name for path in (folder / "numpy").iterdir() if path.is_dir())
    return [
        replace(window, name=f"{split}/{window.name}")
        for split in splits
        for window in read_split(folder, split, PEDRO, checkpoint, hz=PEDRO_HZ)
    ]


def _is_there(folder: Path | None, option: str) -> bool:
    if folder is None or not folder.is_dir():
        print(f"left out: {option} names no folder ({folder})")
        return False
    return True


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    main()
