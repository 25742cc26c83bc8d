"""Find objects in a recording, which needs no labels, and draw a video; the same as `rvtssm predict`.

python scripts/predict.py checkpoint=outputs/gen1/checkpoints/best.ckpt recording=drive.raw out=outputs/drive
"""

import sys

from rvtssm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
