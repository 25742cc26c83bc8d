"""What a training tells while it goes on. The command line prints more than the default, and writes files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import Transferred, TransferSource
from rvtssm.training.sections import TrainSections


@dataclass(frozen=True)
class AboutToTrain:
    """What is known of a run just before its first step."""

    sections: TrainSections
    data: SequenceDataModule
    meta: CheckpointMeta
    out: Path
    resume: Path | None
    device: str
    total_batch: int  # chunks per optimiser step, over all processes
    peak_bytes: int  # estimated memory of a step, of one process
    scored_labels: tuple[int, int]  # of the validation: scored, all


class TrainReports:
    """Use this, or a subclass, to hear what a training does. Only the first of several processes calls it."""

    def say(self, text: str, is_warning: bool = False) -> None:
        """Tell a line."""
        Console(markup=False, highlight=False).print(text, soft_wrap=True)

    def start_weights(self, path: str, source: TransferSource) -> None:
        """Tell which weights a training starts from, before its data are read."""

    def transferred(
        self, path: str, source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred]
    ) -> None:
        """Tell which tensors of the detector are those of the start weights."""

    def about_to_train(self, run: AboutToTrain) -> None:
        """Tell what the run is about to do, before its first step."""
        recordings = {split: len(run.data.sequences(split)) for split in ("train", "val")}
        self.say(
            f"about to train {run.sections.training.steps} steps on {recordings['train']} recordings "
            f"(validation: {recordings['val']}) with about {run.peak_bytes / 1e9:.2g} GB of memory on {run.device}; "
            f"output {run.out}"
        )
