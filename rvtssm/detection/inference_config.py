"""The settings of predictions and of live detection. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.models.model_config import PostprocessConfig
from rvtssm.readers import check_told
from rvtssm.records import REDUCTIONS, SHOWN_SCORE, check_window
from rvtssm.system.limits import check_at_least, check_choice, check_positive, check_share, check_whole
from rvtssm.system.user_error import UserError

# Formats of results: the name of the file ("" if there is none), and the function that opens its writer.
RESULT_WRITERS = {
    "jsonl": ("detections.jsonl", "rvtssm.detection.result_files:open_json_lines"),
    "npy": ("detections.npy", "rvtssm.detection.result_files:open_array"),
    "coco": ("coco_results.json", "rvtssm.detection.result_files:open_coco_results"),
    "mcap": ("detections.mcap", "rvtssm.contrib.ros.detection_bag:open_detection_bag"),
    "rrd": ("prediction.rrd", "rvtssm.contrib.rerun.rerun_view:open_rerun_file"),
    "rerun": ("", "rvtssm.contrib.rerun.rerun_view:open_rerun_viewer"),
}
PICTURE_FORMATS = ("mp4", "png")
VIEWS = ("sensor", "network")
TRACKERS = ("bytetrack",)
_LARGEST_SCALE = 16  # largest enlargement of pictures; larger ones show nothing more


@dataclass
class PredictConfig:
    """Settings of `rvtssm predict`."""

    hz: float | None = None
    """Inference rate in Hz; null: the rate of training."""
    window: str | None = None
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; null: as the weights allow.
    """
    downsample: int | None = None
    """Each n x n square of the sensor is one pixel of the frame; null: the largest n that finds objects."""
    reduce: str | None = None
    """Of each square. nearest: keep one pixel; sum: count the events of all; null: as in training."""
    height: int | None = None
    """Height of the sensor in pixels, if the events do not give it."""
    width: int | None = None
    """Width of the sensor in pixels, if the events do not give it."""
    repair: bool = False
    """Read a recording even if many events are faulty (docs/your_files.md)."""
    time_unit: str | None = None
    """Unit of the times in a recording that does not say it: us, ns, ms or s."""
    format: str | None = None
    """Format of a recording that does not tell it, such as evt3."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of a recording that does not tell them, by name or by number: {t: ts, x: xs, y: ys, p: ps}."""
    camera_settings: str | None = None
    """YAML file with settings for recording=camera: (docs/cameras.md)."""
    min_score: float = SHOWN_SCORE
    """Lowest score of boxes in files and pictures."""
    all_scores: bool = False
    """Write all boxes that pass `postprocess` to the files, for programs that score them."""
    postprocess: PostprocessConfig = field(default_factory=lambda: PostprocessConfig(max_detections=100))
    formats: list[str] = field(default_factory=lambda: ["jsonl", "npy", "mp4", "png"])
    """Files to write: some of RESULT_WRITERS, mp4, png."""
    overlay: bool = True
    """Draw on the images of a DSEC sequence if they are in the view of the events."""
    max_fps: float = 30.0
    """Above this rate, each picture of a video covers several windows."""
    num_stills: int = 4
    """Number of pictures for png, evenly spread over the recording."""
    view: str = "sensor"
    """Events in pictures. sensor: of the sensor; network: of the detector's frame."""
    scale: int | None = None
    """Enlargement of pictures; null: to a width of about 960 pixels."""
    track: str | None = None
    """Track objects, which gives each a constant track_id, 0: no track; one of TRACKERS."""
    track_memory_s: float = 1.0
    """How long a lost object keeps its track number, in seconds."""
    track_smooth_s: float = 0.0
    """Time constant over which the score of a tracked object is averaged; 0: not averaged."""
    windows_per_call: int = 8
    """Windows per call of the detector, affects speed and memory, not results; 1 for latency."""

    def __post_init__(self) -> None:
        check_window("predict.window", self.window)
        check_choice("predict.reduce", self.reduce, (*REDUCTIONS, None))
        check_told("predict", self)
        check_choice("predict.view", self.view, VIEWS)
        check_choice("predict.track", self.track, (*TRACKERS, None))
        check_at_least("predict", self, 0, "track_memory_s", "track_smooth_s")
        check_positive("predict", self, "hz", "max_fps")
        check_whole("predict", self, "downsample", "height", "width", "scale", "windows_per_call")
        if self.hz is not None and self.hz > 1e6:
            raise UserError(
                "settings.rate_too_high", f"predict.hz={self.hz:g} must be at most 1000000, which means windows of 1 us"
            )
        if self.scale is not None and self.scale > _LARGEST_SCALE:
            raise UserError("predict.scale", f"predict.scale={self.scale} must be at most {_LARGEST_SCALE}")
        check_share("predict", self, "min_score")
        if self.num_stills < 0:
            raise UserError("predict.num_stills", f"predict.num_stills={self.num_stills} must not be negative")
        for name in self.formats:
            check_choice("predict.formats", name, (*RESULT_WRITERS, *PICTURE_FORMATS))


@dataclass
class LiveConfig:
    """Settings of `rvtssm live`."""

    camera: str = "auto"
    """Serial number of a camera; auto: the first one found."""
    camera_settings: str | None = None
    """YAML file with biases and region of interest (docs/cameras.md)."""
    hz: float | None = None
    """Highest rate in Hz, lower if the detector is slower; null: the rate of training."""
    window: str | None = None
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; null: as the weights allow.
    """
    downsample: int | None = None
    """Each n x n square of the sensor is one pixel of the frame; null: for a recording as in `predict`, for a camera
    the largest n that leaves frames as large as in training."""
    reduce: str | None = None
    """Of each square. nearest: keep one pixel; sum: count the events of all; null: as in training."""
    height: int | None = None
    """Height of the sensor in pixels, if a recording does not give it."""
    width: int | None = None
    """Width of the sensor in pixels, if a recording does not give it."""
    repair: bool = False
    """Read a recording even if many events are faulty (docs/your_files.md)."""
    time_unit: str | None = None
    """Unit of the times in a recording that does not say it: us, ns, ms or s."""
    format: str | None = None
    """Format of a recording that does not tell it, such as evt3."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of a recording that does not tell them, by name or by number: {t: ts, x: xs, y: ys, p: ps}."""
    duration_s: float | None = None
    """Seconds to run; null: until Ctrl-C or until the camera is unplugged."""
    postprocess: PostprocessConfig = field(
        default_factory=lambda: PostprocessConfig(min_score=SHOWN_SCORE, max_detections=100)
    )
    track: str | None = None
    """Track objects, which gives each a constant track_id, 0: no track; one of TRACKERS."""
    track_memory_s: float = 1.0
    """How long a lost object keeps its track number, in seconds."""
    formats: list[str] = field(default_factory=lambda: ["jsonl"])
    """Some of RESULT_WRITERS."""

    def __post_init__(self) -> None:
        check_window("live.window", self.window)
        check_choice("live.reduce", self.reduce, (*REDUCTIONS, None))
        check_told("live", self)
        check_choice("live.track", self.track, (*TRACKERS, None))
        check_at_least("live", self, 0, "track_memory_s")
        check_positive("live", self, "hz", "duration_s")
        check_whole("live", self, "downsample", "height", "width")
        if self.hz is not None and self.hz > 1e6:
            raise UserError(
                "settings.rate_too_high", f"live.hz={self.hz:g} must be at most 1000000, which means windows of 1 us"
            )
        for name in self.formats:
            check_choice("live.formats", name, RESULT_WRITERS)
