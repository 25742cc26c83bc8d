"""The settings of predictions and of live detection. This file does not import torch."""

import re
from dataclasses import dataclass, field, replace

from rvtssm.models.model_config import PostprocessConfig
from rvtssm.records.settings import REDUCTIONS, SHOWN_SCORE, check_window
from rvtssm.system.extras import installed_parts
from rvtssm.system.limits import check_choice, check_positive, check_share, check_whole
from rvtssm.system.user_error import UserError

# Formats of results: the name of the file ("" if there is none), and the function that opens its writer. Those of other
# packages, among them folders of `rvtssm.contrib`, are entry points of the group `rvtssm.results`.
RESULT_WRITERS = {
    "jsonl": ("detections.jsonl", "rvtssm.detection.result_files:open_json_lines"),
    "npy": ("detections.npy", "rvtssm.detection.result_files:open_array"),
    "coco": ("coco_results.json", "rvtssm.detection.result_files:open_coco_results"),
}
PICTURE_FORMATS = ("mp4", "png")
VIEWS = ("sensor", "network")
TRACKERS = ("bytetrack",)
MOST_SHOWN = 100  # boxes of a frame in files and pictures, if `postprocess.max_detections` does not say
_LARGEST_SCALE = 16  # largest enlargement of pictures; larger ones show nothing more


@dataclass
class DetectionConfig:
    """How events become boxes, for `rvtssm predict` and `rvtssm live`."""

    hz: float | None = None
    """Inference rate in Hz; null: the rate of training. A live detector that is slower passes over windows."""
    window: str | None = None
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; null: as the weights allow.
    """
    downsample: int | None = None
    """Each n x n square of the sensor is one pixel of the frame; null: the largest n that finds objects, for a camera
    the largest n that leaves frames as large as in training."""
    reduce: str | None = None
    """Of each square. nearest: keep one pixel; sum: count the events of all; null: as in training."""
    tiles: str | None = None
    """Cut frames into overlapping tiles, across and down, such as 2x2, for small objects (docs/live.md)."""
    min_score: float = SHOWN_SCORE
    """Lowest score of boxes in files and pictures."""
    track: str | None = None
    """Track objects, which gives each a constant track_id, 0: no track; one of TRACKERS."""
    camera_settings: str | None = None
    """YAML file with biases and region of interest of a camera (docs/live.md)."""

    def __post_init__(self) -> None:
        check_window("detection.window", self.window)
        check_choice("detection.reduce", self.reduce, (*REDUCTIONS, None))
        check_choice("detection.track", self.track, (*TRACKERS, None))
        check_positive("detection", self, "hz")
        check_whole("detection", self, "downsample")
        check_share("detection", self, "min_score")
        parse_tiles(self.tiles)
        check_highest_rate("detection", self.hz)


@dataclass
class PredictConfig:
    """What `rvtssm predict` writes."""

    formats: list[str] = field(default_factory=lambda: ["jsonl", "npy", "mp4", "png"])
    """Files to write: some of RESULT_WRITERS, mp4, png, and those of installed parts."""
    all_scores: bool = False
    """Write all boxes that pass `postprocess` to the files, for programs that score them."""
    view: str = "sensor"
    """Events in pictures. sensor: of the sensor; network: of the detector's frame."""
    scale: int | None = None
    """Enlargement of pictures; null: to a width of about 960 pixels."""
    windows_per_call: int = 8
    """Windows per call of the detector, affects speed and memory, not results; 1 for latency."""

    def __post_init__(self) -> None:
        check_choice("predict.view", self.view, VIEWS)
        check_whole("predict", self, "scale", "windows_per_call")
        if self.scale is not None and self.scale > _LARGEST_SCALE:
            raise UserError("predict.scale", f"predict.scale={self.scale} must be at most {_LARGEST_SCALE}")
        for name in self.formats:
            check_choice("predict.formats", name, (*result_writers(), *PICTURE_FORMATS))


@dataclass
class LiveConfig:
    """What `rvtssm live` reads and writes."""

    camera: str = "auto"
    """Serial number of a camera; auto: the first one found."""
    duration_s: float | None = None
    """Seconds to run; null: until Ctrl-C or until the camera is unplugged."""
    benchmark: bool = False
    """Measure the first windows of a recording at several values of downsample instead, and write benchmark.json."""
    formats: list[str] = field(default_factory=lambda: ["jsonl"])
    """Some of RESULT_WRITERS, and those of installed parts."""
    heartbeat: bool = False
    """Go on with windows while a pipe or a program is silent, by the clock of this computer."""

    def __post_init__(self) -> None:
        check_positive("live", self, "duration_s")
        for name in self.formats:
            check_choice("live.formats", name, result_writers())


def result_writers() -> dict[str, tuple[str, str]]:
    """Return all formats of results by name."""
    return {**RESULT_WRITERS, **installed_parts("rvtssm.results")}


def check_highest_rate(section: str, hz: float | None) -> None:
    """Raise UserError for a rate whose windows are shorter than a microsecond."""
    if hz is not None and hz > 1e6:
        raise UserError(
            "settings.rate_too_high", f"{section}.hz={hz:g} must be at most 1000000, which means windows of 1 us"
        )


def shown_boxes(config: PostprocessConfig) -> PostprocessConfig:
    """Return the rules for boxes that people look at: the given ones, with at most MOST_SHOWN boxes per frame."""
    return replace(config, max_detections=config.max_detections or MOST_SHOWN)


def parse_tiles(text: str | None) -> tuple[int, int]:
    """Return the numbers of tiles across and down, such as (2, 2) for 2x2; (1, 1) for None.

    Raises:
        UserError: The text does not give two numbers from 1 to 8.
    """
    match = re.fullmatch(r"([1-8])x([1-8])", "1x1" if text is None else str(text))
    if match is None:
        raise UserError(
            "tiles.format", f"detection.tiles={text!r} must be two numbers from 1 to 8, across and down, such as 2x2"
        )
    return int(match[1]), int(match[2])
