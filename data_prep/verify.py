"""Checks a tree of recordings, of prepared sequences, or both: the door to `rvtssm verify`.

python data_prep/verify.py dataset=gen1 dataset.raw_dir=data/gen1
python data_prep/verify.py dataset=gen1 dataset.raw_dir=data/gen1 dataset.prepared_dir=data/gen1_prepared
"""

import sys

from rvtssm.cli import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
