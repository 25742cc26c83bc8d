"""Convert a checkpoint of the official SSM release or of RVT (a Lightning .ckpt) to the format of this package.

python scripts/convert_checkpoint.py gen1_base.ckpt gen1_base_converted.ckpt --dataset gen1 --size base
python scripts/convert_checkpoint.py gen1_base.ckpt gen1_base_carried.ckpt --dataset gen1 --size base --memory carried
python scripts/convert_checkpoint.py rvt-t.ckpt rvt_t_converted.ckpt --dataset onempx --size tiny

Weights of the SSM release use bilinear discretisation and no bandlimit, and forget after 21 steps on Gen1 and 10 on
1Mpx, as in their training; with --memory carried they carry their state. Weights of RVT always carry their state.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rvtssm.datasets import DATASETS
from rvtssm.models import MODEL_SIZES
from rvtssm.models.checkpoint import load_file, write_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.models.official import convert_official


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the checkpoint of the official SSM release or of RVT")
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("--dataset", required=True, choices=list(DATASETS), help="the dataset it was trained on")
    shape = parser.add_mutually_exclusive_group(required=True)
    shape.add_argument("--size", choices=list(MODEL_SIZES), help="its published size")
    shape.add_argument("--head-dim", type=int, help="channels per attention head, if it has another size")
    parser.add_argument("--memory", choices=["carried", "chunk"], help="default: chunk for SSMs, carried for RVT")
    parser.add_argument("--memory-chunk", type=int, help="steps after which it forgets; default: gen1 21, onempx 10")
    parser.add_argument("--trust-pickle", action="store_true", help="allow the file to run code while it is read")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        if options.target.exists():
            raise ValueError(f"{options.target} exists already; delete it, or choose another name")
        content = load_file(options.source, trust_pickle=options.trust_pickle)
        if "state_dict" not in content:
            raise ValueError(f"{options.source} has no state_dict; give the Lightning .ckpt file itself")
        converted = convert_official(
            content["state_dict"],
            DATASETS[options.dataset],
            options.size,
            head_dim=options.head_dim,
            memory=options.memory,
            memory_chunk=options.memory_chunk,
        )
        options.target.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(options.target, converted.detector, converted)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    model = converted.model_config
    memory = "state carried" if model.memory == "carried" else f"forgets after {model.memory_chunk} steps"
    millions = count_parameters(converted.detector)["total"] / 1e6
    print(f"{options.target}: {model.preset} {converted.temporal_config.name}, {millions:.6f} M parameters, {memory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
