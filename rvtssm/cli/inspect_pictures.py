"""What `rvtssm inspect` draws of a dataset: a few labelled frames."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.datasets.tree import RawRecording, find_recordings
from rvtssm.drawing.draw import SHOWN_US, draw_frame, strip_of
from rvtssm.drawing.image_files import to_png
from rvtssm.events.label_rules import with_class_indices
from rvtssm.events.labels import find_nothing
from rvtssm.readers import open_with
from rvtssm.records import DatasetSpec, Detections
from rvtssm.system.user_error import UserError

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
        counts = np.zeros((2, events.height, events.width), np.uint16)
    np.add.at(counts, (shown.p, shown.y, shown.x), 1)
    ltwh = np.stack([boxes[side] for side in "xywh"], axis=1)
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
