"""The settings of an evaluation. This file does not import torch."""

from dataclasses import dataclass
from typing import Any

from rvtssm.detection import TRACKERS
from rvtssm.records.settings import SPLITS, STILL_US, check_window
from rvtssm.system.limits import Settings, check_class_map, setting
from rvtssm.system.user_error import UserError

FORMATS = ("coco", "csv")  # see evaluation/scored_files.py


@dataclass
class EvaluationConfig(Settings, section="evaluation"):
    """Settings of `rvtssm evaluate`."""

    hz: list[float] | None = setting(None, above=0, is_filled=True, is_distinct=True)
    """Inference rates in Hz, such as 20 or [20,200]; null: the rate of training."""
    grid: str = setting("labels", choices=("labels", "free"))
    """labels: a window ends at every label; free: exact rate, and labels are scored at the next window end."""
    window: str = "both"
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; both: score both."""
    step_scale: float | None = setting(None, above=0)
    """Step scale of the temporal layers; null: stride / training stride; 1: no rescaling."""
    memory: str | None = setting(None, choices=("carried", None))
    """carried: always carry the state; null: carry or reset it as in training."""
    checkpoints: list[str] | None = setting(None, is_distinct=True, is_path=True)
    """Compare several weights in one report, instead of `checkpoint`."""
    class_map: Any = None
    """Score weights on data with other classes: theirs by those of the weights, as in {vehicle: car}."""
    split: str = setting("test", choices=SPLITS)
    """The split to score: train, val or test."""
    source: str | None = setting(None, choices=("raw", "prepared", None))
    """Raw or prepared data; null: raw if present, since only raw data runs at any rate."""
    label_hz: float | None = setting(None, above=0)
    """Interpolate labels along tracks to this rate; needs grid=free or streaming=true."""
    streaming: bool = False
    """Score each label with the newest output that was ready at that moment."""
    latency_ms: float | None = setting(None, at_least=0)
    """Duration of one step, for streaming; null: measure it on this machine."""
    latency_from: str | None = setting(None, is_path=True)
    """Read the latency from the prediction.json of `rvtssm predict`."""
    when_late: str = setting("skip", choices=("skip", "queue"))
    """skip: after a long step, continue with the newest window; queue: compute every window."""
    time_shifts_ms: list[float] | None = setting(None, is_distinct=True)
    """Compute AP with outputs shifted by these times; null: -200 to 200 ms if streaming, otherwise none."""
    track: str | None = setting(None, choices=(*TRACKERS, None))
    """Track objects, and score the tracks if the labels have some; one of TRACKERS."""
    bootstrap: int = setting(1000, at_least=0)
    """Bootstrap replicates for the confidence intervals; 0: none."""
    workers: int | None = setting(1, at_least=1, or_null=True)
    """Processes that share the recordings; null: one per GPU, or one per core; torchrun starts its own."""
    ablate_memory: bool = False
    """Score the training rate again with the state reset at every step."""
    formats: list[str] = setting([], choices=FORMATS)
    """Also write what is scored: coco (labels and detections for COCO's tools), csv (per recording and per image)."""
    still_ms: float = setting(STILL_US / 1000, at_least=0)
    """Score objects apart that have not moved for this long, if the labels say so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class_map("evaluation.class_map", self.class_map)
        check_window("evaluation.window", self.window, "both")
        if self.latency_ms is not None and self.latency_from is not None:
            advice = "both give the duration of a step; leave one of them out"
            raise UserError("setting.conflict", name="evaluation.latency_ms and evaluation.latency_from", advice=advice)
        # What only streaming reads.
        usual = {"latency_ms": None, "latency_from": None, "when_late": "skip"}
        for key, value in usual.items():
            if not self.streaming and getattr(self, key) != value:
                needed = "it only applies to streaming; set evaluation.streaming=true"
                raise UserError("setting.needs", name=f"evaluation.{key}", found=getattr(self, key), needed=needed)
        # Interpolated labels lie between window ends, and nobody has annotated their tracks.
        if self.label_hz is not None and self.grid == "labels" and not self.streaming:
            needed = "it makes labels between window ends; set evaluation.grid=free or evaluation.streaming=true"
            raise UserError("setting.needs", name="evaluation.label_hz", found=f"{self.label_hz:g}", needed=needed)
        if self.label_hz is not None and self.track is not None:
            needed = f"it needs annotated labels, but evaluation.label_hz={self.label_hz:g} interpolates them"
            advice = "leave one of them out"
            raise UserError("setting.conflict", name="evaluation.track", found=self.track, needed=needed, advice=advice)
