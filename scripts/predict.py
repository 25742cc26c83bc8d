"""Detects in one recording, without labels, and draws a video: the door to `rvtssm predict`.

python scripts/predict.py checkpoint=outputs/gen1/checkpoints/best.ckpt recording=drive.raw out=outputs/drive
"""

import sys

from rvtssm.cli import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
