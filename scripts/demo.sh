#!/usr/bin/env bash
# The whole chain on synthetic recordings, from a bare checkout to report.md; arguments are overrides of `rvtssm demo`.
#
#   bash scripts/demo.sh
#   bash scripts/demo.sh out=outputs/demo
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

exec .venv/bin/rvtssm demo "$@"
