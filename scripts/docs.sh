#!/usr/bin/env bash
# Install if needed, and build the site into outputs/site. A broken link, any other warning, and a verb or key that
# the search does not find, is an error.
#
#   bash scripts/docs.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package docs

.venv/bin/python scripts/site_pages.py outputs/pages
rm -rf outputs/site
PYTHONPATH=. .venv/bin/zensical build --strict
.venv/bin/python scripts/site_search.py outputs/site
echo "open outputs/site/index.html"
