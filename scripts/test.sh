#!/usr/bin/env bash
# Install if needed, check style, spelling and types, read random mutants of files for a minute, and run all tests.
# Arguments go to pytest; with arguments the mutants are left out.
#
#   bash scripts/test.sh
#   bash scripts/test.sh -n 0 -x tests/ssm        # one process, stop at the first failure, one room
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

# One thread per worker, because two pools of threads on two cores slow each other down.
export OMP_NUM_THREADS=1

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/codespell
.venv/bin/mypy &
types=$!
if [ $# -eq 0 ]; then
    bash scripts/fuzz.sh 60 0  # the same mutants each time, so that it fails only after a change; the types meanwhile
fi
wait "$types"
.venv/bin/python -m pytest -n 2 --dist worksteal "$@"
