"""Events become boxes: files, streams and cameras, and the results.

The settings of predictions and of live detection stand here. They do not import torch.
"""

import re
from dataclasses import dataclass, replace

from rvtssm.models import PostprocessConfig
from rvtssm.records.settings import REDUCTIONS, SHOWN_SCORE, check_window
from rvtssm.system.extras import installed_parts
from rvtssm.system.limits import Settings, check_choice, setting
from rvtssm.system.machine import share_processors
from rvtssm.system.user_error import UserError

share_processors()  # before anything here imports torch


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
AUTO = "auto"  # the rate that a machine sustains, see `configured_detector.py`
MOST_SHOWN = 100  # boxes of a frame in files and pictures, if `postprocess.max_detections` does not say
_LARGEST_SCALE = 16  # largest enlargement of pictures; larger ones show nothing more


@dataclass
class DetectionConfig(Settings, section="detection"):
    """How events become boxes, for `rvtssm predict` and `rvtssm live`."""

    hz: int | float | str | None = setting(None, choices=(AUTO,), above=0, at_most=1_000_000)
    """Inference rate in Hz; null: the rate of training; auto: the highest one that `live` sustains on this machine. A
    live detector that is slower passes over windows."""
    window: str | None = None
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; null: as the weights allow.
    """
    downsample: int | None = setting(None, at_least=1)
    """Each n x n square of the sensor is one pixel of the frame; null: the largest n that finds objects, for a camera
    the largest n that leaves frames as large as in training."""
    reduce: str | None = setting(None, choices=(*REDUCTIONS, None))
    """Of each square. nearest: keep one pixel; sum: count the events of all; null: as in training."""
    tiles: str | None = None
    """Cut frames into overlapping tiles, across and down, such as 2x2, for small objects (docs/live.md)."""
    min_score: float = setting(SHOWN_SCORE, at_least=0, at_most=1)
    """Lowest score of boxes in files and pictures."""
    track: str | None = setting(None, choices=(*TRACKERS, None))
    """Track objects, which gives each a constant track_id, 0: no track; one of TRACKERS."""
    camera_settings: str | None = setting(None, is_path=True)
    """YAML file with biases and region of interest of a camera (docs/live.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("detection.window", self.window)
        parse_tiles(self.tiles)

    @property
    def rate(self) -> float | None:
        """`hz` as a number, which it is once a live detector has chosen one in place of `auto`."""
        if isinstance(self.hz, str):
            needed = "only live detection chooses a rate: give a number"
            raise UserError("setting.conflict", name="detection.hz", found=self.hz, needed=needed)
        return self.hz


@dataclass
class PredictConfig(Settings, section="predict"):
    """What `rvtssm predict` writes."""

    formats: list[str] = setting(["jsonl", "npy", "mp4", "png"])
    """Files to write: some of RESULT_WRITERS, mp4, png, and those of installed parts."""
    all_scores: bool = False
    """Write all boxes that pass `postprocess` to the files, for programs that score them."""
    view: str = setting("sensor", choices=VIEWS)
    """Events in pictures. sensor: of the sensor; network: of the detector's frame."""
    scale: int | None = setting(None, at_least=1, at_most=_LARGEST_SCALE)
    """Enlargement of pictures; null: to a width of about 960 pixels."""
    windows_per_call: int = setting(8, at_least=1)
    """Windows per call of the detector, affects speed and memory, not results; 1 for latency."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.formats:
            check_choice("predict.formats", name, (*result_writers(), *PICTURE_FORMATS))


@dataclass
class LiveConfig(Settings, section="live"):
    """What `rvtssm live` reads and writes."""

    camera: str = "auto"
    """Serial number of a camera; auto: the first one found."""
    duration_s: float | None = setting(None, above=0)
    """Seconds to run; null: until Ctrl-C or until the camera is unplugged."""
    formats: list[str] = setting(["jsonl"])
    """Some of RESULT_WRITERS, and those of installed parts."""
    heartbeat: bool = False
    """Go on with windows while a pipe or a program is silent, by the clock of this computer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.formats:
            check_choice("live.formats", name, result_writers())


def result_writers() -> dict[str, tuple[str, str]]:
    """Return all formats of results by name."""
    return {**RESULT_WRITERS, **installed_parts("rvtssm.results")}


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
        needed = "give two numbers from 1 to 8, across and down, such as 2x2"
        raise UserError("setting.form", name="detection.tiles", found=text, needed=needed)
    return int(match[1]), int(match[2])
