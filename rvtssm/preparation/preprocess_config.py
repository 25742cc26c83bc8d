"""What preparing needs besides the windows: the section `preprocess` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PreprocessConfig:
    """Which recordings are prepared, with or without their labels, and by which processes."""

    labels: str = "required"  # every label time ends a window; or "none": a fixed stride from the first event
    splits: tuple[str, ...] = ("train", "val", "test")
    scheduler: str | None = None  # of a dask cluster that sees the same folders, such as tcp://node1:8786; null: none
    workers: int | None = None  # None: one per core
    overwrite: bool = False  # replace what was made with other settings
    check_disk: bool = True  # refuse to begin where the disk seems too small

    def __post_init__(self) -> None:
        if self.labels not in ("required", "none"):
            raise ValueError(f"preprocess.labels={self.labels!r}; choose from required, none")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"preprocess.workers={self.workers} must be at least 1, or null for one per core")
        if not self.splits:
            raise ValueError("preprocess.splits=[] leaves nothing to prepare; name some, such as [train,val,test]")

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"
