"""Turn raw recordings into histograms on disk; the same as `rvtssm preprocess`.

python data_prep/preprocess.py dataset=gen1 dataset.raw_dir=data/gen1 dataset.prepared_dir=data/gen1_prepared
python data_prep/preprocess.py dataset=onempx dataset.raw_dir=data/onempx dataset.prepared_dir=data/onempx_prepared
"""

import sys

from rvtssm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["preprocess", *sys.argv[1:]]))
