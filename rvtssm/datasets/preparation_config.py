"""The settings of `rvtssm preprocess`. This file does not import the code that reads and writes recordings."""

from dataclasses import dataclass

from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.user_error import UserError


@dataclass
class PreprocessConfig:
    """Which recordings to prepare, whether to use their labels, and which processes do the work."""

    labels: str = "required"
    """required: a window ends at every label; none: a fixed stride from the first event."""
    splits: tuple[str, ...] = ("train", "val", "test")
    """The splits to prepare."""
    scheduler: str | None = None
    """Address of a dask cluster that sees the same folders, such as tcp://node1:8786; null: none."""
    workers: int | None = None
    """Number of worker processes; null: one per core."""
    overwrite: bool = False
    """Replace files that were made with other settings."""
    check_disk: bool = True
    """Refuse to start if the disk seems too small."""

    def __post_init__(self) -> None:
        check_choice("preprocess.labels", self.labels, ("required", "none"))
        check_at_least("preprocess", self, 1, "workers")
        if not self.splits:
            raise UserError(
                "preprocess.no_splits",
                "preprocess.splits=[] leaves nothing to prepare; name some, such as [train,val,test]",
            )

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"
