"""How recordings become sequences: the section `preprocess` of the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rvtssm.events.representations import Counting

EXECUTORS = ("process", "dask")


@dataclass
class PreprocessConfig:
    """How recordings become sequences."""

    stride_ms: float = 50.0  # distance of window ends
    length_ms: float | None = None  # None: as long as the distance (shrink); a number: always that long (slide)
    convention: str = "exact"  # or "rvt", which reproduces RVT's files
    representation: str = "histogram"  # or another of events/representations.py
    grid: str = "labels"  # "labels": every label time ends a window; "free": fixed stride from the first event
    labels: str = "required"  # or "none": prepare without, on the free grid
    num_bins: int = 10
    count_cutoff: int = 10
    splits: tuple[str, ...] = ("train", "val", "test")
    executor: str = "process"  # or "dask": the workers of a cluster, which see the same folders
    scheduler: str | None = None  # address of the cluster, such as tcp://node1:8786
    workers: int | None = None  # None: one per core
    overwrite: bool = False  # replace what was made with other settings
    check_disk: bool = True  # refuse to begin where the disk seems too small

    def __post_init__(self) -> None:
        for name, choices in (("grid", ("labels", "free")), ("labels", ("required", "none")), ("executor", EXECUTORS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"preprocess.{name}={getattr(self, name)!r}; choose from {', '.join(choices)}")
        if self.grid == "free" and self.is_labelled:
            raise ValueError("grid=free has no windows that end at labels; set labels=none as well, or grid=labels")
        for name in ("stride_ms", "length_ms"):
            value = getattr(self, name)
            if value is not None and not 0.001 <= value < math.inf:
                raise ValueError(f"preprocess.{name}={value:g} must be at least 0.001, which is a microsecond")
        try:
            self.counting  # noqa: B018  checks its values
        except ValueError as error:
            raise ValueError(f"preprocess: {error}") from None
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"preprocess.workers={self.workers} must be at least 1, or null for one per core")
        if (self.executor == "dask") != (self.scheduler is not None):
            raise ValueError(
                f"preprocess.executor={self.executor} with scheduler={self.scheduler}; a cluster needs both, "
                "executor=dask scheduler=tcp://HOST:8786, this machine alone neither"
            )
        if not self.splits:
            raise ValueError("preprocess.splits=[] leaves nothing to prepare; name some, such as [train,val,test]")

    @property
    def counting(self) -> Counting:
        return Counting(self.num_bins, self.count_cutoff, self.convention, self.representation)

    @property
    def stride_us(self) -> int:
        return round(self.stride_ms * 1000)

    @property
    def length_us(self) -> int | None:
        """Window length; RVT's windows always have one, by default that of the stride."""
        if self.length_ms is None:
            return self.stride_us if self.convention == "rvt" else None
        return round(self.length_ms * 1000)

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"
