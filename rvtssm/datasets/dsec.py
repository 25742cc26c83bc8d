"""DSEC-Det: driving in Swiss cities, seen by the left event camera of DSEC at 640 x 480. Eight classes at 20 Hz.

Sources: Gehrig et al., DSEC, RA-L 2021 (the recordings); Gehrig and Scaramuzza, Nature 2024, and its dsec-det (labels,
splits). The smallest boxes that are scored are those of its detector, DAGR.

The folder has the published layout: `{train,test}/<sequence>/events/left/events.h5` and
`{train,test}/<sequence>/object_detections/left/tracks.npy`; the validation sequences lie in `train`. Coordinates are
sensor pixels, distorted by the lens: the labels were made in this view, and rectifying the events would leave holes and
count some pixels twice. A sequence without tracks can be predicted but not scored.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.events.label_rules import clean_boxes
from rvtssm.events.labels import read_boxes
from rvtssm.records import DatasetSpec, Labels

SPEC = DatasetSpec(
    name="dsec",
    height=480,
    width=640,
    class_names=("pedestrian", "rider", "car", "bus", "truck", "bicycle", "motorcycle", "train"),
    label_interval_us=50_000,  # each image is labelled
    min_side_px=20,
    min_diagonal_px=30,
    prepare_min_side_px=5,
    prepare_min_diagonal_px=0,
    skip_us=0,  # times are absolute and do not start at 0
    disk_names=("dsec_det", "dsec-det"),
    event_suffixes=("/events/left/events.h5",),
    boxes_suffix="/object_detections/left/tracks.npy",
    split_sources={
        "train": (
            "train/thun_00_*",
            "train/interlaken_00_[c-g]",
            "train/zurich_city_0[0-9]_*",
            "train/zurich_city_1[01]_*",
        ),
        "val": ("train/zurich_city_1[6-9]*", "train/zurich_city_2[01]*"),
    },
)

# A label counts as the first of these classes that a model has. Two-wheelers in 1Mpx include their riders, so a model
# trained there cannot find a rider alone. Nor was it trained on lorries, buses and trains. Such labels are ignored: a
# model is not penalised for missing or finding these objects.
_STANDS_FOR = {
    "pedestrian": ("pedestrian", "person"),
    "rider": ("two-wheeler", "pedestrian", "person"),
    "car": ("car",),
    "bus": ("car",),
    "truck": ("car",),
    "bicycle": ("two-wheeler",),
    "motorcycle": ("two-wheeler",),
    "train": ("car",),
}
_IGNORED = ("rider", "bus", "truck", "train")


def labels_for(path: Path | str, class_names: Sequence[str]) -> tuple[Labels, npt.NDArray[np.bool_]]:
    """Return the cleaned tracks of a sequence as labels for a model with these classes.

    Args:
        path: A file `tracks.npy`.
        class_names: The classes of the model.

    Returns:
        The labels in sensor pixels, ordered by time, without those that no class of the model stands for;
        `window_index` is -1, since there are no windows yet. Also (N,), which of them the model has to find; the others
        are ignored.
    """
    boxes = clean_boxes(read_boxes(path), SPEC, "exact", is_train=False)
    stands_for = np.array(_places(class_names))
    boxes = boxes[stands_for[boxes["class_id"]] >= 0]
    own = boxes["class_id"].astype(np.int64)
    labels = Labels(
        boxes_ltwh=np.stack([boxes[name] for name in "xywh"], axis=1),
        class_id=stands_for[own],
        t_us=boxes["t"].copy(),
        window_index=np.full(len(own), -1),
        still_us=boxes["still_us"].copy(),
    )
    if tuple(class_names) == SPEC.class_names:
        return labels, np.ones(len(own), bool)
    return labels, ~np.isin(own, [SPEC.class_names.index(name) for name in _IGNORED])


def mapping_in_words(class_names: Sequence[str]) -> str:
    """Return how labels count for a model with these classes, as one sentence for a report."""
    if tuple(class_names) == SPEC.class_names:
        return "classes as labelled"
    parts: dict[str, list[str]] = {"scored": [], "ignored": [], "left out": []}
    for name, place in zip(SPEC.class_names, _places(class_names), strict=True):
        if place < 0:
            parts["left out"].append(name)
        else:
            parts["ignored" if name in _IGNORED else "scored"].append(f"{name} as {class_names[place]}")
    return "; ".join(f"{part}: {', '.join(names)}" for part, names in parts.items() if names or part == "scored")


def _places(class_names: Sequence[str]) -> list[int]:
    """Return, for each class of SPEC, the index of the class that it counts as, or -1."""
    if tuple(class_names) == SPEC.class_names:
        return list(range(len(class_names)))
    places = []
    for own in SPEC.class_names:
        counted_as = next((name for name in _STANDS_FOR[own] if name in class_names), None)
        places.append(-1 if counted_as is None else list(class_names).index(counted_as))
    return places
