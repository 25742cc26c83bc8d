"""`rvtssm simulate`: turns a video into events and its labels into boxes, as a dataset that `dataset=custom` reads."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from rvtssm.cli.console import announce, say
from rvtssm.contrib.demo.camera import drawn_camera, simulate_events
from rvtssm.contrib.demo.simulation_config import CAMERAS, LONGEST_S
from rvtssm.contrib.worlds.video import VideoSource, dense_frames, open_video, picture_files
from rvtssm.contrib.worlds.video_labels import read_video_labels
from rvtssm.contrib.worlds.worlds_config import WorldsConfig, video_path
from rvtssm.datasets.custom import read_spec
from rvtssm.events.labels import Boxes, interpolated_boxes, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.system.files import atomic_file, file_errors
from rvtssm.system.limits import check_choice
from rvtssm.system.output_folder import locked, result_file
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import progress_bar


def simulate(config: WorldsConfig) -> None:
    """Write `out/SPLIT/NAME_td.dat`, with labels also `NAME_bbox.npy` and `out/dataset.yaml`.

    A recording that is complete is not simulated again; `.NAME.simulate.json` beside it holds what it was made from.
    Raise ValueError if the recording or its boxes exist and were made from anything else. Frames are read one after
    the other, so that a video of any length needs the same memory.
    """
    options, out = config.simulate, Path(str(config.out))
    check_choice("synthetic.sensor", config.synthetic.sensor, CAMERAS)
    source = open_video(video_path(config), options.fps, options.linear)
    if source.times_us[-1] > 1e6 * LONGEST_S:
        raise UserError(
            "file.content", name=source.path,
            found=f"longer than {LONGEST_S} s, which the clock of the recording can hold", advice="cut it into parts",
        )  # fmt: skip
    boxes: Boxes | None = None
    names: tuple[str, ...] = ()
    if options.labels:
        of_labels = options.label_format, source, options.classes, options.label_columns or ()
        boxes, names = read_video_labels(options.labels, *of_labels)
        if options.label_hz is not None and len(boxes):
            if not (boxes["track_id"] > 0).any():
                raise UserError(
                    "labels.no_tracks", name=options.labels, needed=f"label_hz={options.label_hz:g} needs tracks",
                    advice="leave label_hz out",
                )  # fmt: skip
            boxes = interpolated_boxes(boxes, options.label_hz, source.path.name)
    announce(
        "simulate",
        video=f"{source.path}, {source.num_frames} frames at {source.fps:.6g} Hz",
        sensor=f"{source.width} x {source.height}",
        labels=f"{len(boxes)} boxes of {', '.join(names)}" if boxes is not None else "none",
        output=out,
    )
    folder, name = out / options.split, source.path.resolve().stem
    events_path, boxes_path = folder / f"{name}_td.dat", folder / f"{name}_bbox.npy"
    written = []
    with locked(out):
        claim_recordings(folder / f".{name}.simulate.json", _origin(config, source), (events_path, boxes_path))
        if boxes is not None:
            _describe(out / "dataset.yaml", source, names)
        if not events_path.exists():
            rng = np.random.default_rng(np.random.SeedSequence((config.seed, *name.encode())))
            camera = drawn_camera(config.synthetic.camera, rng)
            with progress_bar("frames", source.num_frames) as advance:
                frames = _counted(source, options.max_motion_px, advance)
                write_dat(events_path, simulate_events(frames, camera, rng), source.height, source.width)
            written.append(str(events_path))
        if boxes is not None:
            with result_file(boxes_path) as staged:
                write_boxes(staged, boxes)
            written.append(str(boxes_path))
    say(f"wrote {' and '.join(written)}" if written else f"{events_path} is complete; nothing was written")


def _origin(config: WorldsConfig, source: VideoSource) -> dict[str, object]:
    """Return what the events of a recording depend on."""
    paths = picture_files(source.path) if source.names else [source.path]
    files = [path.stat() for path in paths]
    num_bytes = sum(file.st_size for file in files)
    return {
        "video": str(source.path.resolve()),
        "bytes": num_bytes,
        "modified_ns": max(file.st_mtime_ns for file in files),
        "times": hashlib.sha256(np.array(source.times_us).tobytes()).hexdigest(),
        "linear": source.is_linear,
        "max_motion_px": config.simulate.max_motion_px,
        "seed": config.seed,
        "camera": asdict(config.synthetic.camera),
    }


def claim_recordings(path: Path, origin: Mapping[str, object], files: Iterable[Path]) -> None:
    """Write what recordings are made from, before they are made.

    Args:
        path: The file to write.
        origin: What they are made from.
        files: The files of the recordings, which need not exist.

    Raises:
        UserError: One of them exists, and nothing says that it was made from the same.
    """
    found: Mapping[str, object] = {}
    if path.exists():
        with file_errors(path, advice="choose another out=DIR"):
            found = dict(json.loads(path.read_text()))
    different = [key for key, value in origin.items() if found.get(key, ...) != value]
    if different and (existing := [file for file in files if file.exists()]):
        raise UserError(
            "run.other_settings", name=existing[0],
            found=f"made from another video or other settings ({', '.join(different)})",
            advice="choose another out=DIR",
        )  # fmt: skip
    if different:
        with atomic_file(path) as staged:
            staged.write_text(json.dumps(origin, indent=2) + "\n")


def _counted(
    source: VideoSource, max_motion_px: float, advance: Callable[[int], None]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield dense frames, and advance a bar at those of the video."""
    own_times = set(source.times_us)
    for t_us, frame in dense_frames(source, max_motion_px):
        if t_us in own_times:
            advance(1)
        yield t_us, frame


def _describe(path: Path, source: VideoSource, names: tuple[str, ...]) -> None:
    """Write `dataset.yaml`, or compare it with that of another video. ValueError if size or classes differ."""
    content = {"classes": list(names), "height": source.height, "width": source.width, "labels": "_bbox.npy"}
    if path.exists():
        spec = read_spec(path.parent)  # which may have more keys, such as label_interval_us
        found = dict(zip(content, (list(spec.class_names), spec.height, spec.width, spec.boxes_suffix), strict=True))
        if found != content:
            raise UserError(
                "run.other_settings", name=path, found=f"it describes {found}, and this video is {content}",
                advice="choose another out=DIR",
            )  # fmt: skip
        return
    with atomic_file(path) as staged:
        staged.write_text(yaml.safe_dump(content, sort_keys=False))
