"""What `rvtssm inspect` draws of a dataset: a few labelled frames, and plots of its boxes and recordings."""

import io
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.checks.inspect_dataset import SIZES, TreeInspection
from rvtssm.datasets.tree import RawRecording, find_recordings
from rvtssm.drawing.draw import SHOWN_US, draw_frame, strip_of
from rvtssm.drawing.image_files import to_png
from rvtssm.events.label_rules import with_class_indices
from rvtssm.events.labels import find_nothing
from rvtssm.readers import open_with
from rvtssm.records import DatasetSpec, Detections
from rvtssm.system.user_error import UserError

_NUM_FRAMES = 4  # of a split
# Margins are fixed. An automatic layout draws everything twice, which took half of the time of a picture.
_MARGINS = {"left": 0.07, "right": 0.97, "bottom": 0.08, "top": 0.95, "hspace": 0.3, "wspace": 0.18}
_SIZE_COLOURS = ("#bbccee", "#6699cc", "#225588")


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
            place = (i + 0.5) / _NUM_FRAMES * len(labelled)
            try:
                picture = _labelled_frame(labelled[int(place)], spec, place % 1)
            except (UserError, OSError):
                continue
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
    times_us = np.unique(boxes["t"])
    t_us = int(times_us[int(share * len(times_us))])
    boxes = boxes[boxes["t"] == t_us]
    with closing(open_with(recording.events_path, spec.read_options)) as events:
        shown, counts = events.between(t_us - SHOWN_US, t_us), np.zeros((2, events.height, events.width), np.uint16)
    np.add.at(counts, (shown.p, shown.y, shown.x), 1)
    ltwh = np.stack([boxes[side] for side in "xywh"], axis=1)
    names, class_id, is_uncertain = spec.class_names, boxes["class_id"].astype(np.int64), boxes["pseudo_score"] < 0
    if is_uncertain.any():
        class_id[is_uncertain] += len(names)
        names += tuple(f"{name}, uncertain" for name in names)
    drawn = Detections(ltwh_to_xyxy(ltwh), np.ones(len(boxes), np.float32), class_id, t_us)
    caption = f"{recording.name}: labels at {t_us} us"
    return draw_frame(counts, drawn, None, names, caption=caption, has_scores=False)


def tree_png(inspection: TreeInspection) -> bytes:
    """Draw the number of boxes by class and size, and the duration and mean rate of every recording, by split."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported here because the import takes a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), dpi=110)
    labels, recordings = figure.subplots(2, gridspec_kw=_MARGINS)
    below = np.zeros(len(inspection.splits) * len(inspection.class_names))
    ticks = [f"{name}\n{split}" for split in inspection.splits for name in inspection.class_names]
    tables = np.concatenate([np.zeros((0, len(SIZES))), *(inspection.labels(split) for split in inspection.splits)])
    for i, size in enumerate(SIZES):
        labels.bar(np.arange(len(ticks)), tables[:, i], bottom=below, label=size, color=_SIZE_COLOURS[i])
        below = below + tables[:, i]
    labels.set_xticks(np.arange(len(ticks)), ticks)
    labels.set(ylabel="boxes", title=f"{inspection.name}: {inspection.kind} {inspection.dataset}")
    labels.legend(title="area (COCO)")
    for split in inspection.splits:
        parts = [part for part in inspection.parts if part.split == split and part.num_events]
        durations = [part.duration_us / 1e6 for part in parts]
        recordings.scatter(
            durations, [part.mean_rate / 1e6 for part in parts], label=split or inspection.name, alpha=0.7
        )
    recordings.set(xlabel="seconds", ylabel="million events per second", title="recordings", xlim=(0, None))
    recordings.set_ylim(bottom=0)
    recordings.legend()
    FigureCanvasAgg(figure)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
