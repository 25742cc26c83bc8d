"""`rvtssm simulate`: turns a video into events and its labels into boxes, as a dataset that `dataset=custom` reads."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import yaml

from rvtssm.atomic_files import atomic_file
from rvtssm.config import Config
from rvtssm.events.labels import Boxes, interpolated_boxes, write_boxes
from rvtssm.events.readers.dat import write_dat
from rvtssm.output_folder import locked
from rvtssm.progress import progress_bar
from rvtssm.run.announcement import announce
from rvtssm.run.console import say
from rvtssm.run.inputs import video_path
from rvtssm.simulation.camera import drawn_camera, simulate_events
from rvtssm.simulation.video import VideoSource, dense_frames, open_video
from rvtssm.simulation.video_labels import read_video_labels

_LONGEST_S = 4294  # of a DAT file


def simulate(config: Config) -> None:
    """Write `out/SPLIT/NAME_td.dat`, with labels also `NAME_bbox.npy` and `out/dataset.yaml`.

    A recording that is complete is not simulated again. Frames are read one after the other, so that a video of any
    length needs the same memory.
    """
    wanted, out = config.simulate, Path(str(config.out))
    source = open_video(video_path(config), wanted.fps, wanted.linear)
    if source.num_frames / source.fps > _LONGEST_S:
        raise ValueError(f"{source.path} is longer than {_LONGEST_S} s, the clock of the files; cut it into parts")
    boxes: Boxes | None = None
    names: tuple[str, ...] = ()
    if wanted.labels:
        boxes, names = read_video_labels(wanted.labels, wanted.label_format, source, wanted.classes)
        if wanted.label_hz is not None and len(boxes):
            if not (boxes["track_id"] > 0).any():
                raise ValueError(
                    f"{wanted.labels} has no tracks, which label_hz={wanted.label_hz:g} needs; leave it out"
                )
            boxes = interpolated_boxes(boxes, wanted.label_hz, source.path.name)
    announce(
        "simulate",
        video=f"{source.path}, {source.num_frames or 'unknown'} frames at {source.fps:g} Hz",
        sensor=f"{source.width} x {source.height}",
        labels=f"{len(boxes)} boxes of {', '.join(names)}" if boxes is not None else "none",
        output=out,
    )
    stem = out / wanted.split / source.path.stem
    events_path, boxes_path = (stem.with_name(stem.name + suffix) for suffix in ("_td.dat", "_bbox.npy"))
    with locked(out):
        if boxes is not None:
            _describe(out / "dataset.yaml", source, names)
        if not events_path.exists():
            rng = np.random.default_rng(np.random.SeedSequence((config.seed, len(source.path.name))))
            camera = drawn_camera(config.synthetic.camera, rng)
            with progress_bar("frames", source.num_frames or None) as advance:
                frames = _counted(dense_frames(source, wanted.max_motion_px), source.fps, advance)
                write_dat(events_path, simulate_events(frames, camera, rng), source.height, source.width)
        if boxes is not None:
            write_boxes(boxes_path, boxes)
    say(f"wrote {events_path}" + (f" and {boxes_path}" if boxes is not None else ""))


def _counted(
    frames: Iterator[tuple[int, np.ndarray]], fps: float, advance: Callable[[int], None]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield frames and advance a bar at those of the video."""
    done = 0
    for t_us, frame in frames:
        if (reached := int(t_us * fps / 1e6 + 1.5)) > done:
            advance(reached - done)
            done = reached
        yield t_us, frame
    if done < 2:
        raise ValueError("the video has a single frame that can be read; events need two or more")


def _describe(path: Path, source: VideoSource, names: tuple[str, ...]) -> None:
    """Write `dataset.yaml`, or compare it with that of another video. ValueError if size or classes differ."""
    content = {"classes": list(names), "height": source.height, "width": source.width, "labels": "_bbox.npy"}
    if path.exists():
        found = yaml.safe_load(path.read_text())
        if found != content:
            raise ValueError(f"{path} describes {found}, this video is {content}; choose another out=DIR")
        return
    with atomic_file(path) as staged:
        staged.write_text(yaml.safe_dump(content, sort_keys=False))
