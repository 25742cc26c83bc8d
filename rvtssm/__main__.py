"""`python -m rvtssm` runs the command line."""

import sys

from rvtssm.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
