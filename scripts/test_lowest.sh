#!/usr/bin/env bash
# Install the lowest versions that pyproject.toml allows into outputs/lowest, and run the tests that compare numbers.
#
#   bash scripts/test_lowest.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python3 -m venv --clear outputs/lowest
outputs/lowest/bin/python -m pip install --disable-pip-version-check uv
install=(outputs/lowest/bin/python -m uv pip install --python outputs/lowest/bin/python)
"${install[@]}" --resolution lowest-direct -e '.[export]'
"${install[@]}" pytest hypothesis scipy packaging  # the newest ones that go with these
outputs/lowest/bin/python -m pip list
OMP_NUM_THREADS=1 outputs/lowest/bin/python -m pytest tests/ssm tests/models tests/evaluation tests/datasets \
    tests/export/test_export_detector.py tests/detection/test_predictor.py
