"""The settings of predictions, of live detection and of labels. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records import SHOWN_SCORE
from rvtssm.system.limits import check_at_least, check_choice, check_positive, check_share
from rvtssm.system.user_error import UserError

DETECTION_FILES = {
    "jsonl": "detections.jsonl",
    "npy": "detections.npy",
    "coco": "coco_results.json",
    "mcap": "detections.mcap",
}
ANIMATIONS = ("gif", "webp")
PREDICTION_FORMATS = (*DETECTION_FILES, "mp4", "png", *ANIMATIONS, "rrd")
VIEWS = ("sensor", "network", "rerun")
TRACKERS = ("bytetrack",)
_LARGEST_SCALE = 16  # of pictures: larger ones hold nothing new


@dataclass
class PredictConfig:
    """One run of `rvtssm predict`."""

    hz: float | None = None  # inference rate, null: the rate of training
    # at other rates: slide, as long as in training; shrink, as long as the stride; null: what the weights are made for
    window: str | None = None
    downsample: int | None = None  # frames keep one pixel in n x n, null: the largest with which something is found
    height: int | None = None  # of the sensor in pixels, for events that do not say it
    width: int | None = None  # of the sensor in pixels, for events that do not say it
    repair: bool = False  # read a recording of which more than 1 % of the events are earlier than one before them
    camera_settings: str | None = None  # YAML file: biases, region of interest of recording=camera: (docs/cameras.md)
    min_score: float = SHOWN_SCORE  # of boxes that are drawn; files hold what `postprocess` lets through
    postprocess: PostprocessConfig = field(default_factory=lambda: PostprocessConfig(max_detections=100))
    formats: list[str] = field(default_factory=lambda: ["jsonl", "npy", "mp4", "png"])  # some of PREDICTION_FORMATS
    overlay: bool = True  # draw on the images of a DSEC sequence, where they are in the view of the events
    max_fps: float = 30.0  # above this rate, the video shows several windows in one picture
    num_stills: int = 4  # pictures evenly spread over the recording, for png
    # of pictures, one of VIEWS: events of the sensor, or of the network's frame; rerun: of the sensor, and in Rerun
    view: str = "sensor"
    scale: int | None = None  # enlargement of pictures, null: to about 960 pixels of width
    animation_mb: float = 8.0  # the most of gif and webp, in megabytes; they show fewer pictures of long recordings
    track: str | None = None  # number the objects, so that the same one has the same track_id; one of TRACKERS
    track_memory_s: float = 1.0  # for how long an object that is not found keeps its number, in seconds
    windows_per_call: int = 8  # that go through the detector together: speed and memory, not results; 1 for latency

    def __post_init__(self) -> None:
        check_choice("predict.window", self.window, ("slide", "shrink", None))
        check_choice("predict.view", self.view, VIEWS)
        check_choice("predict.track", self.track, (*TRACKERS, None))
        check_at_least("predict", self, 0, "track_memory_s")
        check_positive("predict", self, "hz", "downsample", "height", "width", "max_fps", "scale", "animation_mb")
        check_positive("predict", self, "windows_per_call")
        if self.hz is not None and self.hz > 1e6:
            raise UserError(f"predict.hz={self.hz:g} must be at most 1000000, which means windows of 1 us")
        if self.scale is not None and self.scale > _LARGEST_SCALE:
            raise UserError(f"predict.scale={self.scale} must be at most {_LARGEST_SCALE}")
        check_share("predict", self, "min_score")
        if self.num_stills < 0:
            raise UserError(f"predict.num_stills={self.num_stills} must not be negative")
        if unknown := [name for name in self.formats if name not in PREDICTION_FORMATS]:
            raise UserError(f"predict.formats has {unknown[0]!r}; choose from {', '.join(PREDICTION_FORMATS)}")


@dataclass
class LabelConfig:
    """One run of `rvtssm label`, which makes labels where there are none."""

    splits: list[str] = field(default_factory=lambda: ["train"])  # whose recordings get labels; the others keep theirs
    interval_ms: float | None = None  # between label times, in whole steps; null: the usual interval of the dataset
    min_score: float = 0.4  # of a trusted box, the mean of both directions of time
    min_iou: float = 0.5  # overlap of the boxes of both directions that are one object
    min_track_ms: float = 200.0  # between the first and the last box of the track of a trusted box
    track_memory_s: float = 0.5  # for how long an object that is not found keeps its track, in seconds
    processes: int | None = 1  # that share the recordings, null: one per GPU, or one per core

    def __post_init__(self) -> None:
        check_share("label", self, "min_score", "min_iou")
        check_at_least("label", self, 0, "min_track_ms", "track_memory_s")
        check_positive("label", self, "interval_ms")
        check_at_least("label", self, 1, "processes")
        if not self.splits or len(set(self.splits)) < len(self.splits):
            raise UserError(f"label.splits={self.splits}; name each split once, such as [train]")


@dataclass
class LiveConfig:
    """One run of `rvtssm live`."""

    camera: str = "auto"  # the first one that is found, or the serial number of one
    camera_settings: str | None = None  # YAML file: biases, region of interest (docs/cameras.md)
    hz: float | None = None  # highest rate, null: the rate of training; the rate is lower if the detector is slower
    # at other rates: slide, as long as in training; shrink, as long as the stride; null: what the weights are made for
    window: str | None = None
    downsample: int | None = None  # frames keep one pixel in n x n, null: the largest that keeps the size of training
    height: int | None = None  # of the sensor in pixels, for a recording that does not say it
    width: int | None = None  # of the sensor in pixels, for a recording that does not say it
    repair: bool = False  # play a recording of which more than 1 % of the events are earlier than one before them
    duration_s: float | None = None  # null: until Ctrl-C, or until the camera is unplugged
    postprocess: PostprocessConfig = field(
        default_factory=lambda: PostprocessConfig(min_score=SHOWN_SCORE, max_detections=100)
    )
    formats: list[str] = field(default_factory=lambda: ["jsonl"])  # some of DETECTION_FILES

    def __post_init__(self) -> None:
        check_choice("live.window", self.window, ("slide", "shrink", None))
        check_positive("live", self, "hz", "downsample", "height", "width", "duration_s")
        if self.hz is not None and self.hz > 1e6:
            raise UserError(f"live.hz={self.hz:g} must be at most 1000000, which means windows of 1 us")
        for name in self.formats:
            check_choice("live.formats", name, DETECTION_FILES)
