"""DSEC-Det: driving in Swiss cities, seen by the left event camera of DSEC at 640 x 480. Eight classes at 20 Hz.

Sources: Gehrig et al., DSEC, RA-L 2021 (the recordings); Gehrig and Scaramuzza, Nature 2024, and its dsec-det (labels,
splits). The smallest boxes that are scored are those of its detector, DAGR.

The folder has the published layout: `{train,test}/<sequence>/events/left/events.h5` and
`{train,test}/<sequence>/object_detections/left/tracks.npy`; the validation sequences lie in `train`. Coordinates are
sensor pixels, distorted by the lens: the labels were made in this view, and rectifying the events would leave holes and
count some pixels twice.
"""

from rvtssm.records import DatasetSpec

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
