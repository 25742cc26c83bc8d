"""The settings of an evaluation. This file does not import torch."""

import math
from dataclasses import dataclass, field
from typing import Any

from rvtssm.detection.inference_config import TRACKERS
from rvtssm.records.settings import STILL_US, check_window
from rvtssm.system.limits import check_at_least, check_choice, check_class_map, check_positive
from rvtssm.system.user_error import UserError

FORMATS = ("coco", "csv")  # see evaluation/scored_files.py


@dataclass
class EvaluationConfig:
    """Settings of `rvtssm evaluate`."""

    hz: Any = None
    """Inference rates in Hz, such as 20 or [20,200]; null: the rate of training."""
    grid: str = "labels"
    """labels: a window ends at every label; free: exact rate, and labels are scored at the next window end."""
    window: str = "both"
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; both: score both."""
    step_scale: float | None = None
    """Step scale of the temporal layers; null: stride / training stride; 1: no rescaling."""
    memory: str | None = None
    """carried: always carry the state; null: carry or reset it as in training."""
    checkpoints: list[str] | None = None
    """Compare several weights in one report, instead of `checkpoint`."""
    class_map: Any = None
    """Score weights on data with other classes: theirs by those of the weights, as in {vehicle: car}."""
    split: str = "test"
    """The split to score: train, val or test."""
    source: str | None = None
    """Raw or prepared data; null: raw if present, since only raw data runs at any rate."""
    label_hz: float | None = None
    """Interpolate labels along tracks to this rate; needs grid=free or streaming=true."""
    streaming: bool = False
    """Score each label with the newest output that was ready at that moment."""
    latency_ms: float | None = None
    """Duration of one step, for streaming; null: measure it on this machine."""
    latency_from: str | None = None
    """Read the latency from the prediction.json of `rvtssm predict`."""
    when_late: str = "skip"
    """skip: after a long step, continue with the newest window; queue: compute every window."""
    time_shifts_ms: list[float] | None = None
    """Compute AP with outputs shifted by these times; null: -200 to 200 ms if streaming, otherwise none."""
    track: str | None = None
    """Track objects, and score the tracks if the labels have some; one of TRACKERS."""
    bootstrap: int = 1000
    """Bootstrap replicates for the confidence intervals; 0: none."""
    workers: int | None = 1
    """Processes that share the recordings; null: one per GPU, or one per core; torchrun starts its own."""
    ablate_memory: bool = False
    """Score the training rate again with the state reset at every step."""
    formats: list[str] = field(default_factory=list)
    """Also write what is scored: coco (labels and detections for COCO's tools), csv (per recording and per image)."""
    still_ms: float = STILL_US / 1000
    """Score objects apart that have not moved for this long, if the labels say so."""

    def __post_init__(self) -> None:
        if isinstance(self.hz, int | float):
            self.hz = [self.hz]
        check_class_map("evaluation.class_map", self.class_map)
        for name in self.formats:
            check_choice("evaluation.formats", name, FORMATS)
        check_choice("evaluation.split", self.split, ("train", "val", "test"))
        check_choice("evaluation.grid", self.grid, ("labels", "free"))
        check_choice("evaluation.when_late", self.when_late, ("skip", "queue"))
        check_choice("evaluation.track", self.track, (*TRACKERS, None))
        check_window("evaluation.window", self.window, "both")
        check_choice("evaluation.source", self.source, ("raw", "prepared", None))
        check_choice("evaluation.memory", self.memory, ("carried", None))
        check_positive("evaluation", self, "step_scale", "label_hz")
        check_at_least("evaluation", self, 0, "still_ms", "bootstrap", "latency_ms")
        check_at_least("evaluation", self, 1, "workers")
        if self.latency_ms is not None and self.latency_from is not None:
            raise UserError(
                "evaluation.two_latencies",
                "evaluation.latency_ms and evaluation.latency_from are both set; leave one of them out",
            )
        usual = {"latency_ms": None, "latency_from": None, "when_late": "skip"}
        for key, value in usual.items():
            if not self.streaming and getattr(self, key) != value:
                raise UserError(
                    "evaluation.only_streaming",
                    f"evaluation.{key}={getattr(self, key)} only applies to streaming; set evaluation.streaming=true",
                )
        if self.label_hz is not None and self.grid == "labels" and not self.streaming:
            raise UserError(
                "evaluation.label_hz",
                f"evaluation.label_hz={self.label_hz:g} creates labels between window ends; set evaluation.grid=free "
                "or evaluation.streaming=true",
            )
        if self.label_hz is not None and self.track is not None:
            raise UserError(
                "evaluation.track_of_interpolated",
                f"evaluation.track={self.track} needs annotated labels, but evaluation.label_hz={self.label_hz:g} "
                "interpolates them; leave one of them out",
            )
        shifts = self.time_shifts_ms
        if shifts is not None and (not all(map(math.isfinite, shifts)) or len(set(shifts)) != len(shifts)):
            raise UserError(
                "evaluation.time_shifts",
                f"evaluation.time_shifts_ms={shifts}; name different finite times, such as [-50,0,50]",
            )
        self._check_rates()
        if self.checkpoints is not None and len(set(self.checkpoints)) != len(self.checkpoints):
            raise UserError(
                "evaluation.checkpoint_twice",
                f"evaluation.checkpoints={self.checkpoints} names the same weights twice; name each once",
            )

    def _check_rates(self) -> None:
        """Raise UserError if `hz` is not a list of different positive numbers."""
        if self.hz is None:
            return
        rates = list(self.hz) if isinstance(self.hz, list | tuple) else []
        if not rates or not all(type(hz) in (int, float) and 0 < hz < math.inf for hz in rates):
            raise UserError(
                "setting.form", name="evaluation.hz", found=self.hz, needed="positive rates, such as 20 or [20,200]"
            )
        if len({f"{hz:g}" for hz in rates}) != len(rates):
            raise UserError("setting.form", name="evaluation.hz", found=self.hz, needed="each rate is named once")
