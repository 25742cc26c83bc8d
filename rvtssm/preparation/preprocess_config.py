"""What preparing needs besides the windows: the section `preprocess` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

EXECUTORS = ("process", "dask")


@dataclass
class PreprocessConfig:
    """Which recordings are prepared, with or without their labels, and by which processes."""

    labels: str = "required"  # every label time ends a window; or "none": a fixed stride from the first event
    splits: tuple[str, ...] = ("train", "val", "test")
    executor: str = "process"  # or "dask": the workers of a cluster, which see the same folders
    scheduler: str | None = None  # address of the cluster, such as tcp://node1:8786
    workers: int | None = None  # None: one per core
    overwrite: bool = False  # replace what was made with other settings
    check_disk: bool = True  # refuse to begin where the disk seems too small

    def __post_init__(self) -> None:
        for name, choices in (("labels", ("required", "none")), ("executor", EXECUTORS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"preprocess.{name}={getattr(self, name)!r}; choose from {', '.join(choices)}")
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
    def is_labelled(self) -> bool:
        return self.labels == "required"
