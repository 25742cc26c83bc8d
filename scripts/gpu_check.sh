#!/usr/bin/env bash
# Run everything that needs an NVIDIA GPU: all tests marked `gpu`, then the benchmarks. Results are JSON files and a log
# in a folder, outputs/gpu unless another is given. It takes at most 10 minutes, and stops each part after its share.
#
#   bash scripts/gpu_check.sh [FOLDER]
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

out=${1:-outputs/gpu}
mkdir -p "$out"
if ! .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "PyTorch finds no GPU here, so there is nothing to check" >&2
    exit 2
fi
failed=0
part() { # seconds, command: its output goes to the log, too
    local limit=$1
    shift
    echo "\$ $*" | tee -a "$out/log.txt"
    timeout "$limit" "$@" 2>&1 | tee -a "$out/log.txt" || failed=1
}
{ git rev-parse HEAD; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; date -u; } >"$out/log.txt"
part 200 .venv/bin/python -m pytest -n 0 -q -m gpu --junitxml="$out/tests.xml"
part 90 .venv/bin/python -m benchmarks.scan --device cuda --json "$out/scan.json"
part 130 .venv/bin/python -m benchmarks.training --device cuda --quick --json "$out/training.json"
part 110 .venv/bin/python -m benchmarks.streaming --device cuda --json "$out/streaming.json"
echo "wrote $(ls "$out" | tr '\n' ' ')in $out"
exit $failed
