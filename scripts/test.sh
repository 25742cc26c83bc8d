#!/usr/bin/env bash
# Lint, types and the whole test suite, from a bare checkout; arguments go to pytest.
#
#   bash scripts/test.sh
#   bash scripts/test.sh -n 0 -x tests/ssm        # one process, stop at the first failure, one room
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

# one thread per worker: two pools of threads on two cores slow each other down
export OMP_NUM_THREADS=1

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
exec .venv/bin/python -m pytest -n 2 --dist worksteal "$@"
