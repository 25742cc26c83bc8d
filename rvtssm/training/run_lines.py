"""What a training says: what may not be meant, what it is about to do, and what it has found."""

from pathlib import Path
from typing import Any

import lightning as L

from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import count_parameters
from rvtssm.models.parts import head_class
from rvtssm.training.checkpoints import best_checkpoint, checkpoints_of, last_checkpoint
from rvtssm.training.module import DetectionModule
from rvtssm.training.optim import learning_rate_rule
from rvtssm.training.preflight import early_weights, outdated_recordings
from rvtssm.training.progress import Progress, say
from rvtssm.training.training_config import TrainSections


def say_doubts(sections: TrainSections, data: SequenceDataModule, total_batch: int) -> None:
    """Warn of what may not be meant, and tell the learning rate if a rule changes it."""
    outdated = outdated_recordings(sections.dataset.raw_dir, data)
    if outdated:
        say(
            f"warning: {len(outdated)} prepared recordings, such as {outdated[0]}, were made from other recordings or "
            f"labels than those in {sections.dataset.raw_dir}; `rvtssm preprocess` makes them again, and `rvtssm "
            "inspect DIR full=true` names all of them"
        )
    if warning := early_weights(sections.training.average, sections.training.steps):
        say(f"warning: {warning}")
    if sections.optim.scale_with_batch:
        say(learning_rate_rule(sections.optim, total_batch))


def facts(
    sections: TrainSections, trainer: L.Trainer, data: SequenceDataModule, meta: CheckpointMeta, total_batch: int
) -> dict[str, Any]:
    """Return what a person wants to check before a run: its data, its steps, where and how it runs."""
    training = sections.training
    sampling = sections.sampling
    # What it trains on.
    recordings = {}
    for split in ("train", "val"):
        recordings[split] = data.in_words(split, data.sequences(split))
    # How a step is made up, and where it runs.
    batch = f"{total_batch} x {sampling.chunk_length} windows"
    parts = {"processes": training.devices * training.num_nodes, "accumulated batches": training.accumulate}
    factors = [f"{number} {name}" for name, number in parts.items() if number > 1]
    if factors:
        batch += f" ({' x '.join([*factors, str(sampling.num_chunks)])})"
    device = str(trainer.strategy.root_device)
    if trainer.world_size > 1:
        device += f" x {trainer.world_size}"
    return {
        "source": f"{data.source} {data.spec.name}",
        "stride": f"{meta.windows.stride_us / 1000:g} ms",
        "recordings": f"{recordings['train']} (validation: {recordings['val']})",
        "steps": f"{training.steps} of {batch}",
        "device": device,
        "precision": training.precision,
        "score": head_class(sections.model).describe_scores(sections.postprocess),
    }


def say_trained(sections: TrainSections, trainer: L.Trainer, module: DetectionModule) -> None:
    """Tell how long a run took, how good its weights are, and where they and its logs are."""
    training = sections.training
    out = sections.run_dir
    checkpoints = checkpoints_of(trainer)
    if trainer.global_step < training.steps:
        say(
            f"ended before step {training.steps}: {checkpoints.num_without_gain} validations in a row had no higher AP "
            f"(training.patience={training.patience})"
        )
    # One line about the whole run, and where its weights and logs are.
    millions = count_parameters(module.detector)["total"] / 1e6
    text = f"trained {millions:.3f} M parameters for {trainer.global_step} steps in {module.train_seconds:.0f} s"
    text += f" in {training.precision}"
    progress = next(callback for callback in trainer.callbacks if isinstance(callback, Progress))  # type: ignore[attr-defined]
    if progress.data_wait is not None:
        text += f", {progress.data_wait:.1%} data wait"
    if checkpoints.start_ap is not None:
        text += (
            f"; validation AP {_percent(checkpoints.start_ap)} at the start, {_percent(checkpoints.best_ap)} at best"
        )
    say(f"{text}; weights: {best_checkpoint(out)}, logs: {out}")
    if "tensorboard" in training.loggers:
        say(f"losses, AP and pictures: tensorboard --logdir {out}")


def _percent(ap: float) -> str:
    return "unknown" if ap < 0 else f"{100 * ap:.1f}"


def say_interrupted_at_the_end(out: Path, trainer: L.Trainer) -> None:
    """Tell about the weights of a run that was interrupted after its last step; nothing for any other run."""
    last = last_checkpoint(out)
    max_steps = trainer.max_steps
    if trainer.global_step < max_steps:
        return
    last_step = load_file(last)["global_step"] if last.is_file() else 0
    if last_step == max_steps:
        best = best_checkpoint(out)
        say(f"all {last_step} steps and the last validation are done; weights: {best} (highest AP) and {last}")
        return
    weights = "there are none"
    if last_step:
        weights = f"{last} has those of step {last_step}, from which resume=auto continues"
    say(f"all {max_steps} steps are done, but weights are written after the last validation; {weights}")
