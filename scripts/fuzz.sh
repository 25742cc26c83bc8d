#!/usr/bin/env bash
# Read random mutants of valid files for some seconds, in two processes; each must be read or be refused in one line.
#
#   bash scripts/fuzz.sh 60          # seconds
#   bash scripts/fuzz.sh 600 7       # the mutants of seed 7
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

export OMP_NUM_THREADS=1
export PYTHONPATH=.:tests
exec .venv/bin/python -m tests.fuzz.attack "${@:-60}"
