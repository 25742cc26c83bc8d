#!/usr/bin/env bash
# Create .venv in the checkout and install the package with the versions in constraints.txt. A second run does nothing
# unless these have changed. RVTSSM_TORCH=cpu takes PyTorch without CUDA, also in later runs that do not say it; other
# values are those of `uv pip install --torch-backend`.
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

# Print a hash of what the environment depends on: the two files, the interpreter, the path of the checkout, which the
# installation points to, and the choice of PyTorch.
wanted_stamp() {
    RVTSSM_TORCH=$1 .venv/bin/python - <<'PYTHON'
import hashlib, os, pathlib, sys
content = b"".join(pathlib.Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
wanted = sys.version + os.getcwd() + os.environ["RVTSSM_TORCH"]
print(hashlib.sha256(content + wanted.encode()).hexdigest())
PYTHON
}

install_package() {
    local stamp=.venv/rvtssm-installed choice=.venv/rvtssm-torch wanted torch
    make_venv
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "install: .venv contains $(.venv/bin/python --version), needed is 3.11 or newer; remove it and try again" >&2
        return 1
    fi
    torch=${RVTSSM_TORCH:-$(cat "$choice" 2>/dev/null || true)}
    wanted=$(wanted_stamp "$torch")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    rm -f "$stamp"
    echo "$torch" >"$choice"
    echo "install: installing the package and its dependencies into .venv"
    # Python compiles what is imported; compiling all of it would take a minute.
    if [ -n "$torch" ]; then
        .venv/bin/python -m pip install --disable-pip-version-check uv
        # PyTorch that is there already may be of another choice with the same version.
        .venv/bin/python -m uv pip install --python .venv/bin/python --torch-backend="$torch" --reinstall-package torch --reinstall-package torchvision -c constraints.txt -e '.[dev]'
    else
        .venv/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
    fi
    # Written last and in one step, so an interrupted installation leaves no stamp and is repeated.
    echo "$wanted" >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

install_package
