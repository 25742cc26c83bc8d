#!/usr/bin/env bash
# List the wheel of every dependency, direct or not, for 64-bit ARM on Linux (Raspberry Pi, Jetson, servers), in the
# versions of constraints.txt. A dependency without such a wheel is an error; antlr4 (of Hydra) is pure Python without one.
#
#   bash scripts/arm_wheels.sh [--extra tracks --extra bags ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
lock=$folder/pylock.toml
"$python" -m uv pip compile pyproject.toml --constraints constraints.txt "$@" --python-version 3.12 --quiet \
    --python-platform aarch64-manylinux_2_28 --only-binary :all: --no-binary antlr4-python3-runtime \
    --format pylock.toml --output-file "$lock" > /dev/null
"$python" - "$lock" <<'PYTHON'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    packages = tomllib.load(file)["packages"]
for package in packages:
    files = [wheel["url"].rsplit("/", 1)[-1] for wheel in package.get("wheels", [])]
    fitting = [name for name in files if "aarch64" in name and "musl" not in name] or files[:1] or ["source only"]
    print(f"{package['name']:28} {fitting[0]}")
PYTHON
