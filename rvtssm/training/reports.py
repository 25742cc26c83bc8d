"""What a training tells: before its first step, while it goes on, and at its end.

The command line prints more than the default, and writes files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from rich.console import Console

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import count_parameters
from rvtssm.models.transfer import Transferred, TransferSource
from rvtssm.training.checkpoints import best_checkpoint, checkpoints_of, last_checkpoint
from rvtssm.training.checks import early_weights, outdated_recordings
from rvtssm.training.module import DetectionModule
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.progress import pace_of
from rvtssm.training.training_config import TrainSections


@dataclass(frozen=True)
class AboutToTrain:
    """What is known of a run just before its first step."""

    run: "Run"
    data: SequenceDataModule
    meta: CheckpointMeta
    total_batch: int  # chunks per optimiser step, over all processes
    peak_bytes: int  # estimated memory of a step, of one process
    scored_labels: tuple[int, int]  # of the validation: scored, all

    @property
    def batch_in_words(self) -> str:
        """The total batch of an optimiser step, and how it is divided."""
        sampling, training = self.run.sections.sampling, self.run.sections.training
        parts = {"processes": training.devices * training.num_nodes, "accumulated batches": training.accumulate}
        factors = [f"{number} {name}" for name, number in parts.items() if number > 1]
        text = f"{self.total_batch} x {sampling.chunk_length} windows"
        if factors:
            text += f" ({' x '.join([*factors, str(sampling.num_chunks)])})"
        return text


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

    def about_to_train(self, about: AboutToTrain) -> None:
        """Tell what the run is about to do, before its first step."""
        run, (num_train, num_val) = about.run, (len(about.data.sequences(split)) for split in ("train", "val"))
        self.say(
            f"about to train {run.sections.training.steps} steps of {about.batch_in_words} on {num_train} "
            f"recordings (validation: {num_val}) with about {about.peak_bytes / 1e9:.2g} GB of memory on "
            f"{run.device_in_words}; output {run.out}"
        )


@dataclass(frozen=True)
class Run:
    """A training that is about to begin. Only its first process tells anything."""

    sections: TrainSections
    out: Path
    trainer: L.Trainer
    reports: TrainReports
    resume: Path | None

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of the run, which tells and writes for all."""
        return self.trainer.is_global_zero

    @property
    def device_in_words(self) -> str:
        device = str(self.trainer.strategy.root_device)
        if self.trainer.world_size > 1:
            device += f" x {self.trainer.world_size}"
        return device

    def say(self, text: str, is_warning: bool = False) -> None:
        if self.is_first:
            self.reports.say(text, is_warning)


def say_choices(run: Run, asked: TrainSections) -> None:
    """Tell what was chosen for this machine in place of `auto`."""
    sections = run.sections
    if asked.training.precision == "auto":
        run.say(f"training.precision=auto: {sections.training.precision}")
    if asked.sampling.batch_size == "auto":
        run.say(
            f"sampling.batch_size=auto: {sections.sampling.batch_size} with "
            f"training.accumulate={sections.training.accumulate}, which fits in memory"
        )


def announce(run: Run, about: AboutToTrain) -> None:
    """Tell what the run is about to do, and what is doubtful about it."""
    if not run.is_first:
        return
    sections = run.sections
    outdated = outdated_recordings(sections.dataset.raw_dir, about.data)
    if outdated:
        run.say(
            f"{len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or labels "
            f"than those in {sections.dataset.raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm inspect DIR "
            "full=true` names all of them",
            is_warning=True,
        )
    if sections.optim.scale_with_batch:
        run.say(learning_rate_rule(sections.optim, about.total_batch))
    run.reports.about_to_train(about)
    if warning := early_weights(sections.training.average, sections.training.steps):
        run.say(warning, is_warning=True)


def say_trained(run: Run, module: DetectionModule) -> None:
    """Tell how long a run took, how good its weights are, and where they and its logs are."""
    if not run.is_first:
        return
    training, checkpoints, waited = run.sections.training, checkpoints_of(run.trainer), pace_of(run.trainer).data_wait
    if run.trainer.global_step < training.steps:
        run.say(
            f"ended before step {training.steps}: {checkpoints.num_without_gain} validations in a row had no higher AP "
            f"(training.patience={training.patience})"
        )
    millions = count_parameters(module.detector)["total"] / 1e6
    text = f"trained {millions:.3f} M parameters for {run.trainer.global_step} steps in {module.train_seconds:.0f} s"
    text += f" in {training.precision}"
    if waited is not None:
        text += f", {waited:.1%} data wait"
    if checkpoints.start_ap is not None:
        start, best = _percent(checkpoints.start_ap), _percent(checkpoints.best_ap)
        text += f"; validation AP {start} at the start, {best} at best"
    run.say(f"{text}; weights: {best_checkpoint(run.out)}, logs: {run.out}")
    if "tensorboard" in training.loggers:
        run.say(f"losses, AP and pictures: tensorboard --logdir {run.out}")


def _percent(ap: float) -> str:
    return "unknown" if ap < 0 else f"{100 * ap:.1f}"


def say_complete(run: Run, checkpoint: Path, state: dict[str, int]) -> Path:
    """Tell that a run has ended already, and return its weights."""
    weights = best_checkpoint(run.out)
    if not weights.is_file():
        weights = checkpoint
    step = state["global_step"]
    reason = f"all {step} steps"
    if step < run.sections.training.steps:
        reason = f"{step} steps, after which training.patience={run.sections.training.patience} ended the run"
    run.say(f"complete already: {checkpoint} has {reason}; weights: {weights}")
    return weights


def say_interrupted_at_the_end(run: Run) -> None:
    """Tell about the weights of a run that was interrupted after its last step; nothing for any other run."""
    max_steps = run.trainer.max_steps
    if run.trainer.global_step < max_steps:
        return
    last, best = last_checkpoint(run.out), best_checkpoint(run.out)
    last_step = load_file(last)["global_step"] if last.is_file() else 0
    if last_step == max_steps:
        run.say(f"all {last_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = "there are none"
    if last_step:
        weights = f"{last} has those of step {last_step}, from which resume=auto continues"
    run.say(f"all {max_steps} steps are done, but weights are written after the last validation; {weights}")
