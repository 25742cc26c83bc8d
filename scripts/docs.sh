#!/usr/bin/env bash
# Install if needed, and build the site into outputs/site. A broken link, any other warning, and a verb or key that
# the search does not find, is an error.
#
#   bash scripts/docs.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package docs

rm -rf .cache outputs/pages outputs/site # of an earlier build, which may have other pages
.venv/bin/python scripts/site_pages.py outputs/pages
PYTHONPATH=. .venv/bin/zensical build --strict
.venv/bin/python scripts/site_search.py outputs/site
echo "open outputs/site/index.html"
