"""Training: a Lightning module that connects detector, losses, optimiser and stored states."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def train(*, callbacks: Sequence[Any] = (), **sections: Any) -> Path:
    """Train a detector from Python, as `rvtssm train` does, and return the path of its best weights.

    >>> best = rvtssm.train(
    ...     dataset=rvtssm.DatasetConfig(raw_dir="street"),
    ...     model=rvtssm.ModelConfig(embed_dim=8, head_dim=8, num_blocks=(1, 0, 0, 0), fpn_blocks=0),
    ...     sampling=rvtssm.SamplingConfig(batch_size=2, chunk_length=2),
    ...     data=rvtssm.DataConfig(workers=0),
    ...     training=rvtssm.TrainingConfig(steps=1, pictures=False),
    ...     out="run",
    ... )
    about to train: source raw ...
    trained 0.132 M parameters for 1 steps in ...
    >>> print(best)
    run/checkpoints/best.ckpt

    Args:
        callbacks: Further Lightning callbacks.
        **sections: The fields of `rvtssm.training.training_config.TrainSections`: `dataset=DatasetConfig(raw_dir=DIR)`,
            `training=TrainingConfig(steps=1000)`, `out=DIR`, and so on.

    Raises:
        UserError: The settings do not fit each other, the data or this machine.
    """
    from rvtssm.training.loop import train as run  # it imports torch
    from rvtssm.training.training_config import TrainSections

    return run(TrainSections(**sections), callbacks)
