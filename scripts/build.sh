#!/usr/bin/env bash
# Build the wheel and the source archive into dist/, and start the command from the wheel. With a tag, refuse one that is
# not the version of the package.
#
#   bash scripts/build.sh
#   bash scripts/build.sh v0.1.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install_package dev

version=$(.venv/bin/python -c 'import rvtssm; print(rvtssm.__version__)')
if [ $# -gt 0 ] && [ "$1" != "v$version" ]; then
    echo "build: the tag is $1 and rvtssm/__init__.py says $version; write the version there, or tag it v$version" >&2
    exit 2
fi
rm -rf dist
.venv/bin/python -m hatchling build -d dist
# The wheel alone, unpacked beside the installed dependencies, answers instead of the checkout.
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
.venv/bin/python -m zipfile -e dist/*.whl "$unpacked"
(python=$PWD/.venv/bin/python && cd "$unpacked" && PYTHONPATH=$unpacked "$python" -m rvtssm info model=small dataset=gen1)
ls dist
