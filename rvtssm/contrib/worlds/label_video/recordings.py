"""Writes the events and the boxes of a part of a clip."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.contrib.demo.camera import drawn_camera
from rvtssm.contrib.demo.simulation_config import FIRST_LABEL_US
from rvtssm.contrib.worlds.evidence import with_events
from rvtssm.contrib.worlds.label_video.boxes import MOVING
from rvtssm.contrib.worlds.label_video.tracks import Track, boxes_at
from rvtssm.contrib.worlds.label_video.views import View
from rvtssm.contrib.worlds.rules import PERSON, SPEC, VEHICLE
from rvtssm.contrib.worlds.simulate import simulate
from rvtssm.contrib.worlds.worlds_config import OpenWorldConfig, SimulateConfig, WorldsConfig
from rvtssm.drawing import write_png
from rvtssm.events.labels import BOX_DTYPE, Boxes, nothing_at, write_boxes
from rvtssm.readers import open_recording

LABEL_US = SPEC.label_interval_us
SENSOR = "any_limited"  # as in the recipe


def label_times_us(num_frames: int, fps: float) -> np.ndarray:
    """Return the times of the labels of a recording."""
    return np.arange(-(-FIRST_LABEL_US // LABEL_US) * LABEL_US, int(1e6 * (num_frames - 1) / fps) + 1, LABEL_US)


def labels(tracks: Sequence[Track], view: View, first: int, fps: float, frame_width: int) -> Boxes:
    """Return the boxes of a recording whose first frame is number `first` of the clip.

    `pseudo_score` is the mean score of the track, negative where it is not sure.
    """
    rows = []
    for t_us in label_times_us(len(view.offsets), fps).tolist():
        index = t_us * fps / 1e6
        for number, track, box, is_sure in boxes_at(tracks, first + index):
            if (seen := view.box(box, index, frame_width)) is not None:
                score = float(track.scores.mean())
                left, top, w, h = xyxy_to_ltwh(seen)
                class_id = track.class_id
                if class_id == MOVING:
                    class_id = PERSON if h > w else VEHICLE
                is_sure = is_sure and min(w, h) >= SPEC.min_side_px
                row = (t_us, left, top, w, h, class_id, number + 1, score, score if is_sure else -score, -1)
                rows.append(row)
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for i, row in enumerate(rows):
        boxes[i] = row
    return boxes


def write_recording(
    frames: Sequence[np.ndarray], view: View, boxes: Boxes, fps: float, out: Path, name: str, seed: int
) -> Boxes:
    """Write out/train/NAME_td.dat and NAME_bbox.npy, and return the boxes: those whose events can be seen."""
    events_path = out / "train" / f"{name}_td.dat"
    with tempfile.TemporaryDirectory() as temporary:
        pictures = Path(temporary) / name
        settings = SimulateConfig(video=str(pictures), fps=fps)
        config = WorldsConfig(simulate=settings, synthetic=OpenWorldConfig(sensor=SENSOR), out=str(out), seed=seed)
        if not events_path.exists():  # without its boxes, it is of an interrupted call, or they were deleted
            pictures.mkdir()
            for index, frame in enumerate(frames):
                write_png(pictures / f"{index:06d}.png", view.picture(frame, index)[:, :, ::-1])
            simulate(config)
    rng = np.random.default_rng(np.random.SeedSequence((seed, *name.encode())))  # as `simulate` draws it
    camera = drawn_camera(config.synthetic.camera, rng)
    with closing(open_recording(events_path, view.height, view.width)) as recording:
        events = list(recording.iterate())
    boxes = with_events(boxes, events, camera.shot_rate_hz + camera.background_rate_hz + camera.leak_rate_hz)
    boxes = np.concatenate([boxes, nothing_at(np.setdiff1d(label_times_us(len(frames), fps), boxes["t"]))])
    boxes = boxes[np.argsort(boxes["t"], kind="stable")]
    write_boxes(out / "train" / f"{name}_bbox.npy", boxes)
    return boxes
