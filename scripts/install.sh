#!/usr/bin/env bash
# Create .venv in the checkout and install the package with the versions in constraints.txt. A second run does nothing
# unless these have changed. RVTSSM_TORCH=cpu takes PyTorch without CUDA; other values are those of
# `uv pip install --torch-backend`.
# Run it (`bash scripts/install.sh`), or source it from another script, whose working directory is then the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13 python; do
        # Start it, because a version manager may put names on the path that do not start.
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "install: there is no Python of version 3.11 or newer on the path; install one (found: $(python3 --version 2>&1 || true))" >&2
    return 1
}

make_venv() {
    local python
    if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    echo "install: creating .venv with $("$python" --version)"
    if ! "$python" -m venv .venv; then
        echo "install: '$python -m venv .venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2
        return 1
    fi
}

# Print a hash of what the environment depends on: the two files, the interpreter and the path of the checkout, which
# the installation points to.
wanted_stamp() {
    .venv/bin/python - <<'PYTHON'
import hashlib, os, pathlib, sys
content = b"".join(pathlib.Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
print(hashlib.sha256(content + sys.version.encode() + os.getcwd().encode()).hexdigest())
PYTHON
}

install_package() {
    local stamp=.venv/rvtssm-installed wanted
    make_venv
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "install: .venv contains $(.venv/bin/python --version), needed is 3.11 or newer; remove it and try again" >&2
        return 1
    fi
    wanted=$(wanted_stamp)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    rm -f "$stamp"
    echo "install: installing the package and its dependencies into .venv"
    # Python compiles what is imported; compiling all of it would take a minute.
    if [ -n "${RVTSSM_TORCH:-}" ]; then
        .venv/bin/python -m pip install --disable-pip-version-check uv
        .venv/bin/python -m uv pip install --python .venv/bin/python --torch-backend="$RVTSSM_TORCH" -c constraints.txt -e '.[dev]'
    else
        .venv/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
    fi
    # Written last and in one step, so an interrupted installation leaves no stamp and is repeated.
    echo "$wanted" >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

install_package
