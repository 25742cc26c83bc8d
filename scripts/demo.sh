#!/usr/bin/env bash
# Install if needed, and run `rvtssm demo`: everything from simulated recordings to report.html. Arguments are overrides.
#
#   bash scripts/demo.sh
#   bash scripts/demo.sh out=outputs/demo
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package

exec .venv/bin/rvtssm demo "$@"
