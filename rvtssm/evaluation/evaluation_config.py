"""The settings of an evaluation. This file does not import torch."""

import math
from dataclasses import dataclass

from rvtssm.prediction.inference_config import TRACKERS
from rvtssm.records import STILL_US
from rvtssm.system.limits import check_at_least, check_choice, check_positive
from rvtssm.system.user_error import UserError


@dataclass
class EvaluationConfig:
    """One run of `rvtssm evaluate`."""

    hz: list[float] | None = None  # inference rates, null: the rate of training
    grid: str = "labels"  # a window ends at every label; or free: at the exact rate, labels scored at the next end
    window: str = "both"  # at other rates: slide, as long as in training; shrink, as long as the stride; or both
    step_scale: float | None = None  # of the temporal layers, null: the stride over that of training; 1: no rescaling
    memory: str | None = None  # carried: weights that forget after every chunk carry their state; null: as they do
    checkpoints: list[str] | None = None  # several weights in one report, instead of `checkpoint`
    split: str = "test"  # whose recordings are scored: train, val or test
    source: str | None = None  # raw or prepared; null: raw where the recordings are, which any rate needs
    label_hz: float | None = None  # interpolate labels along tracks to this rate, with grid=free or streaming=true
    streaming: bool = False  # score at each label the newest output whose computation had finished
    latency_ms: float | None = None  # of a step, for streaming; null: measured on this machine
    latency_from: str | None = None  # file that tells it: prediction.json, or the JSON of benchmarks.streaming
    when_late: str = "skip"  # windows that end during a step, all but the newest; or queue: every window in order
    time_shifts_ms: list[float] | None = None  # AP with outputs of other times; null: with streaming -200 to 200
    track: str | None = None  # number the objects, and score that where labels have tracks; one of TRACKERS
    track_memory_s: float = 1.0  # for how long an object that is not found keeps its number, in seconds
    bootstrap: int = 1000  # replicates of the confidence intervals, 0: none
    # processes that share the batches of recordings, null: one per GPU, or one per four cores; torchrun starts its own
    processes: int | None = 1
    ablate_memory: bool = False  # score the training rate once more, the state reset at every step
    still_ms: float = STILL_US / 1000  # objects that have not moved for so long are scored apart, where labels tell

    def __post_init__(self) -> None:
        check_choice("evaluation.grid", self.grid, ("labels", "free"))
        check_choice("evaluation.when_late", self.when_late, ("skip", "queue"))
        check_choice("evaluation.track", self.track, (*TRACKERS, None))
        check_choice("evaluation.window", self.window, ("both", "slide", "shrink"))
        check_choice("evaluation.source", self.source, ("raw", "prepared", None))
        check_choice("evaluation.memory", self.memory, ("carried", None))
        check_positive("evaluation", self, "step_scale", "label_hz")
        check_at_least("evaluation", self, 0, "still_ms", "bootstrap", "latency_ms", "track_memory_s")
        check_at_least("evaluation", self, 1, "processes")
        if self.latency_ms is not None and self.latency_from is not None:
            raise UserError("evaluation.latency_ms and evaluation.latency_from are both set; leave one of them out")
        usual = {"latency_ms": None, "latency_from": None, "when_late": "skip"}
        for key, value in usual.items():
            if not self.streaming and getattr(self, key) != value:
                raise UserError(
                    f"evaluation.{key}={getattr(self, key)} concerns streaming; set evaluation.streaming=true"
                )
        if self.label_hz is not None and self.grid == "labels" and not self.streaming:
            raise UserError(
                f"evaluation.label_hz={self.label_hz:g} makes labels between window ends; set evaluation.grid=free or "
                "evaluation.streaming=true"
            )
        if self.label_hz is not None and self.track is not None:
            raise UserError(
                f"evaluation.track={self.track} compares with annotated labels, not with those of evaluation.label_hz="
                f"{self.label_hz:g}; leave one of them out"
            )
        shifts = self.time_shifts_ms
        if shifts is not None and (not all(map(math.isfinite, shifts)) or len(set(shifts)) != len(shifts)):
            raise UserError(f"evaluation.time_shifts_ms={shifts}; name different finite times, such as [-50,0,50]")
        rates = self.hz
        if rates is not None and not (rates and all(0 < hz < math.inf for hz in rates)):
            raise UserError(f"evaluation.hz={rates}; name positive rates, such as [20,200]")
        if rates is not None and len({f"{hz:g}" for hz in rates}) != len(rates):
            raise UserError(f"evaluation.hz={rates} names a rate twice; name each once")
        if self.checkpoints is not None and len(set(self.checkpoints)) != len(self.checkpoints):
            raise UserError(f"evaluation.checkpoints={self.checkpoints} names weights twice; name each once")
