"""`python -m rvtssm` runs the command line."""

import sys

from rvtssm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
