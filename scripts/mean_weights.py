"""Write the mean of the weights of several trainings that started from the same weights.

python scripts/mean_weights.py mean.ckpt runs/one/checkpoints/last.ckpt runs/two/checkpoints/last.ckpt

Such a mean often scores higher than each of its parts (Wortsman et al., Model soups, ICML 2022) and costs no more
to run. Of trainings that started from different weights, the mean is useless.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.system.user_error import UserError


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "target", type=Path, help="the checkpoint to write; its description is that of the first source"
    )
    parser.add_argument("sources", type=Path, nargs="+", help="the checkpoints")
    parser.add_argument(
        "--slide",
        action="store_true",
        help="describe them as trained on windows of the usual length only, so that windows slide at other rates by "
        "default, if those that shrink to the stride cost too much accuracy",
    )
    options = parser.parse_args(argv)
    if options.target.exists():  # without a target, the first source would be one
        parser.error(f"{options.target} exists already; delete it, or choose another name")
    try:
        read = [read_checkpoint(source) for source in options.sources]
    except UserError as error:
        parser.error(str(error))
    first = read[0]
    for source, other in zip(options.sources[1:], read[1:], strict=True):
        for name in ("model_config", "temporal_config", "windows"):
            if getattr(other, name) != getattr(first, name):
                parser.error(
                    f"{name} of {source} is not that of {options.sources[0]}; name trainings of the same model"
                )
        if other.spec.class_names != first.spec.class_names:
            parser.error(f"{source} knows {other.spec.class_names}, not {first.spec.class_names}")
    states = [checkpoint.detector.state_dict() for checkpoint in read]
    mean = dict(states[0])
    for name, value in states[0].items():
        if value.dtype.is_floating_point:
            mean[name] = torch.stack([state[name] for state in states]).mean(0)
    first.detector.load_state_dict(mean)
    if options.slide:
        first.window_lengths_us = (first.windows.nominal_length_us,)
    try:
        write_checkpoint(options.target, first.detector, first)
    except (UserError, OSError) as error:
        parser.error(f"{options.target} cannot be written: {error}")
    print(f"wrote {options.target}, the mean of {len(states)} checkpoints")


if __name__ == "__main__":
    main()
