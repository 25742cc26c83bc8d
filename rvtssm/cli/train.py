"""`rvtssm train`: trains a detector on raw or prepared recordings; writes its best and last checkpoint and logs."""

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from rvtssm.cli.announcement import announce, with_labels
from rvtssm.cli.config import Config
from rvtssm.cli.console import say
from rvtssm.cli.init_from import report_transfer, say_settings
from rvtssm.cli.inputs import check_training
from rvtssm.cli.run_files import run_files
from rvtssm.cli.weight_settings import settings_of
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.transfer import Transferred, TransferSource
from rvtssm.training import loop
from rvtssm.training.reports import AboutToTrain, TrainReports
from rvtssm.training.sections import TrainSections


def train(config: Config, callbacks: Sequence[Callback] = ()) -> Path:
    """Train and validate a detector, write `checkpoints/best.ckpt` and `last.ckpt` to `out`; return the best one."""
    check_training(config)
    return loop.train(TrainSections.of(config), _OnTerminal(config), callbacks)


class _OnTerminal(TrainReports):
    """Prints what a training does, and writes the files that describe the run."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def say(self, text: str, is_warning: bool = False) -> None:
        say(text, style="yellow" if is_warning else None)

    def start_weights(self, path: str, source: TransferSource) -> None:
        say_settings(path, source, settings_of(self.config.model, self.config.temporal, self.config.windows.settings))

    def transferred(
        self, path: str, source: TransferSource, meta: CheckpointMeta, report: Sequence[Transferred]
    ) -> None:
        report_transfer(path, source, meta, report, Path(self.config.out or loop.OUT))

    def about_to_train(self, run: AboutToTrain) -> None:
        recordings = {split: _with_labels(run, split) for split in ("train", "val")}
        scored, num_labels = run.scored_labels
        announce(
            "train",
            source=f"{run.data.source} {run.data.spec.name}",
            stride=f"{run.meta.windows.stride_us / 1000:g} ms",
            recordings=f"{recordings['train']} (validation: {recordings['val']}, {scored / num_labels:.0%} scored)",
            steps=f"{run.sections.training.steps} of {run.batch_in_words}",
            memory=f"about {run.peak_bytes / 1e9:.2g} GB per process",
            resumed_from=run.resume,
            device=run.device,
            precision=run.sections.training.precision,
            output=run.out,
        )
        with run_files(run.out, "train", run.sections.applied_to(self.config)):
            pass


def _with_labels(run: AboutToTrain, split: str) -> str:
    sequences = run.data.sequences(split)
    return with_labels(sequences, run.data.num_without_boxes(split, sequences))
