#!/usr/bin/env bash
# Install if needed, check style, spelling and types, and run all tests. Arguments go to pytest.
#
#   bash scripts/test.sh
#   bash scripts/test.sh core                     # without the tests of rvtssm/contrib and of the benchmarks
#   bash scripts/test.sh -n 0 -x tests/ssm        # one process, stop at the first failure, one room
set -euo pipefail
if [ "${1:-}" = core ]; then
    shift
    set -- --ignore=tests/contrib --ignore=tests/benchmarks "$@"
fi
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

# One thread per worker, because two pools of threads on two cores slow each other down.
export OMP_NUM_THREADS=1
# The first process that imports a module compiles it for all others, and for the next run.
unset PYTHONDONTWRITEBYTECODE

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/codespell

# A file that replaces another waits for the disk, and tests write thousands; memory is used where there is enough.
in_memory=
if [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null; then
    in_memory=$(mktemp -d -p /dev/shm)
    export PYTEST_DEBUG_TEMPROOT=$in_memory
fi

# Types take the time in which the tests wait for other processes; what is said of them comes last, where it is seen.
types_said=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$in_memory" "$types_said"' EXIT
.venv/bin/mypy >"$types_said" 2>&1 &
types=$!
failed=0
.venv/bin/python -m pytest -n 2 --dist worksteal "$@" || failed=$?
wait "$types" || failed=$?
echo "types:"
cat "$types_said"
exit "$failed"
