#!/usr/bin/env bash
# Install if needed, and build the site into outputs/site. A broken link, and any other warning, is an error.
#
#   bash scripts/docs.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

.venv/bin/python scripts/site_pages.py outputs/pages
rm -rf outputs/site
PYTHONPATH=. .venv/bin/zensical build --strict
echo "open outputs/site/index.html"
