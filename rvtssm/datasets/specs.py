"""The datasets that are known by name: Gen1, 1Mpx, DSEC-Det and the recordings of `rvtssm generate`.

Sources: de Tournemire et al., A Large Scale Event-based Detection Dataset for Automotive, 2020 (Gen1); Perot et al.,
Learning to Detect Objects with a 1 Megapixel Event Camera, NeurIPS 2020 (1Mpx); Gehrig et al., DSEC, RA-L 2021 (the
recordings of DSEC); Gehrig and Scaramuzza, Nature 2024, and its dsec-det (labels, splits).
"""

from rvtssm.records import DatasetSpec

GENERATED_FILE = "synthetic.json"  # the settings of generated recordings, in their folder

GEN1 = DatasetSpec(
    name="gen1",
    height=240,
    width=304,
    class_names=("car", "pedestrian"),
    label_interval_us=250_000,
    min_side_px=10,
    min_diagonal_px=30,
    prepare_min_side_px=10,
    prepare_min_diagonal_px=30,
)

# Of the seven classes, three are kept, boxes below 5 px are dropped and frames are halved to 640 x 360, as in RVT
# (Gehrig and Scaramuzza, CVPR 2023). The other classes in the files are 3 truck, 4 bus, 5 traffic sign and 6 traffic
# light.
ONEMPX = DatasetSpec(
    name="onempx",
    height=720,
    width=1280,
    class_names=("pedestrian", "two-wheeler", "car"),
    class_ids=(0, 1, 2),
    label_interval_us=100_000,  # labels come at 30 or 60 Hz; about 10 per second are used
    min_side_px=20,
    min_diagonal_px=60,
    prepare_min_side_px=5,
    prepare_min_diagonal_px=0,
    downsample=2,
    disk_names=("gen4", "1mpx"),
)

# The left event camera. The folder has the published layout: `{train,test}/<sequence>/events/left/events.h5` and
# `{train,test}/<sequence>/object_detections/left/tracks.npy`; the validation sequences lie in `train`. Coordinates are
# sensor pixels, distorted by the lens: the labels were made in this view, and rectifying the events would leave holes
# and count some pixels twice. The smallest boxes that are scored are those of the detector of dsec-det, DAGR.
DSEC = DatasetSpec(
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

# Procedural traffic in the raw layout of Gen1. The labels also say how long each object has stood still, which no
# published dataset provides.
SYNTHETIC = DatasetSpec(
    name="synthetic",
    height=120,
    width=160,
    class_names=("vehicle", "person"),  # as the weights in the package and `open_world` call them
    label_interval_us=50_000,
    min_side_px=6,
    min_diagonal_px=12,
    prepare_min_side_px=6,
    prepare_min_diagonal_px=12,
)
