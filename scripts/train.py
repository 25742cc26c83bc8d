"""Train a detector on a dataset; the same as `rvtssm train`.

python scripts/train.py experiment=gen1_s5_base dataset.prepared_dir=data/gen1_prepared out=outputs/gen1
python scripts/train.py experiment=gen1_s5_base dataset.prepared_dir=data/gen1_prepared out=outputs/gen1 resume=auto
python scripts/train.py experiment=onempx_lstm_small dataset.prepared_dir=data/onempx_prepared
"""

import sys

from rvtssm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
