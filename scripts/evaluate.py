"""Measure the average precision of a checkpoint at any rates; the same as `rvtssm evaluate`.

python scripts/evaluate.py checkpoint=outputs/gen1/checkpoints/best.ckpt dataset.raw_dir=data/gen1
python scripts/evaluate.py checkpoint=... dataset.raw_dir=data/gen1 evaluation.hz=[20,40,80,100,200]
"""

import sys

from rvtssm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
