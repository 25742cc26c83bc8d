"""Streets in which people walk and cars drive, and their camera: `generate` writes recordings of them."""

from pathlib import Path
from typing import Any

from rvtssm.datasets.specs import SYNTHETIC as SPEC


def generate(raw_dir: str | Path, *, height: int = SPEC.height, width: int = SPEC.width, **settings: Any) -> list[str]:
    """Write simulated recordings with boxes, as `rvtssm generate` does, and return the names of the new ones.

    >>> rvtssm.generate("street", num_train=1, num_val=1, num_test=1, duration_s=1, height=64, width=96, workers=1)
    ['test/test_0000', 'train/train_0000', 'val/val_0000']

    Args:
        raw_dir: The folder.
        height: Height of the sensor in pixels.
        width: Width of the sensor in pixels.
        **settings: Fields of `SyntheticConfig`, such as sensor="davis346".

    Raises:
        UserError: A setting is out of range, or the folder holds recordings of other settings.
    """
    from rvtssm.synthetic.generate_recordings import (
        SYNTHETIC,
        generate_dataset,
    )  # compiled code, which takes a second to import
    from rvtssm.synthetic.simulation_config import SyntheticConfig

    return generate_dataset(SyntheticConfig(**settings), raw_dir, SYNTHETIC.sized(height, width), progress=False)
