"""`rvtssm train`: a detector from raw or prepared recordings, its best and last checkpoint, its logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import lightning as L

from rvtssm.config import Config
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.sequence import to_window_settings
from rvtssm.models.checkpoint import CheckpointMeta
from rvtssm.models.detector import count_parameters
from rvtssm.run.console import console
from rvtssm.run.inputs import folders
from rvtssm.training.checkpoints import best_checkpoint
from rvtssm.training.fit import build_trainer, find_resume
from rvtssm.training.module import DetectionModule, ModuleSettings


def train(config: Config) -> Path:
    """Train, validate and keep `checkpoints/best.ckpt` and `last.ckpt` in `out`; returns the best one."""
    _check_memory(config)
    out = Path(config.out or "outputs/train")
    L.seed_everything(config.seed, workers=True, verbose=False)
    windows = to_window_settings(config.preprocess)
    data = SequenceDataModule(config.dataset, config.sampling, config.augment, config.data, config.seed, windows)
    meta = _describe(config, data)
    detector = meta.build()
    settings = ModuleSettings(
        spec=data.spec,
        optim=config.optim,
        num_steps=config.training.steps,
        batch_size=config.sampling.batch_size
        * config.training.devices
        * config.training.num_nodes
        * config.training.accumulate,
        trained_stride_us=meta.windows.stride_us,
        carries_state=config.model.memory == "carried",
        postprocess=config.postprocess,
    )
    val_labels = [sequence.labels for sequence in data.sequences("val")]
    module = DetectionModule(detector, settings, meta.to_dict(), _decisive(config, meta), val_labels)
    resume = find_resume(config.resume, out)
    trainer = build_trainer(config.training, out, config.optim.clip_value)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
    except SystemExit:  # what Lightning makes of an interruption
        raise KeyboardInterrupt from None
    best = best_checkpoint(out)
    if trainer.is_global_zero:
        console.print(
            f"trained {count_parameters(detector)['total'] / 1e6:.3f} M parameters for {trainer.global_step} steps "
            f"in {module.train_seconds:.0f} s; weights: {best}, logs: {out}",
            soft_wrap=True,
        )
    return best


def _describe(config: Config, data: SequenceDataModule) -> CheckpointMeta:
    """What the checkpoint will say about itself: the data decide the windows, the configuration the model."""
    where = {key: path and str(Path(path).resolve()) for key, path in folders(config).items()}
    return CheckpointMeta(data.spec, config.model, config.temporal, data.settings, **where)


def _decisive(config: Config, meta: CheckpointMeta) -> dict[str, str | int | float | None]:
    """The settings that decide the numbers of a training run, by key; a run resumes only with the same."""
    training = ("steps", "accumulate", "devices", "num_nodes", "precision")
    sections = {name: asdict(getattr(config, name)) for name in ("model", "temporal", "sampling", "augment", "optim")}
    sections["training"] = {name: getattr(config.training, name) for name in training}
    return _flat({**sections, "dataset": asdict(meta.spec), "windows": asdict(meta.windows), "seed": config.seed})


def _flat(tree: dict, prefix: str = "") -> dict[str, str | int | float | None]:
    """A nested dict as one, its keys joined by dots, lists and tuples as text."""
    flat: dict[str, str | int | float | None] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = str(list(value)) if isinstance(value, (list, tuple)) else value
    return flat


def _check_memory(config: Config) -> None:
    """A model that forgets after n steps is trained and validated in chunks of n."""
    chunk, training, validation = (
        config.model.memory_chunk,
        config.sampling.chunk_length,
        config.data.eval_chunk_length,
    )
    if chunk is not None and (training, validation) != (chunk, chunk):
        raise ValueError(
            f"model.memory_chunk={chunk} with sampling.chunk_length={training} and "
            f"data.eval_chunk_length={validation}; a model that forgets is trained and validated in chunks of "
            "its memory, set all three alike"
        )
