#!/usr/bin/env bash
# Read random mutants of valid files; each must be read or be refused in one line. `scripts/test.sh` tries a few, which
# are the same each time.
#
#   bash scripts/fuzz.sh 1000        # mutants of each kind of file
#   bash scripts/fuzz.sh 10000 7     # those of seed 7
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

export OMP_NUM_THREADS=1
export RVTSSM_MUTANTS=${1:-1000}
exec .venv/bin/python -m pytest -n 2 tests/fuzz/test_fuzz.py --hypothesis-seed="${2:-$RANDOM}"
