#!/usr/bin/env bash
# Create .venv in the checkout and install the package with the versions in constraints.txt, together with the extras of
# pyproject.toml that are named. A second run does nothing unless something has changed, and keeps earlier extras.
#
#   bash scripts/install.sh                          # the core
#   bash scripts/install.sh export web               # ... and two extras; `dev` has everything that the tests need
#   RVTSSM_TORCH=cpu bash scripts/install.sh         # a choice of PyTorch, which later runs keep
#
# RVTSSM_TORCH is a value of `uv pip install --torch-backend`. The default, auto, takes PyTorch for the GPU of this
# machine, or without CUDA if there is no GPU. Other scripts source this one and call install_package; their working
# directory is then the checkout.
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
# installation points to, and the arguments (the choice of PyTorch and the extras).
wanted_stamp() {
    .venv/bin/python - "$@" <<'PYTHON'
import hashlib, os, pathlib, sys
content = b"".join(pathlib.Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
wanted = " ".join([sys.version, os.getcwd(), *sys.argv[1:]])
print(hashlib.sha256(content + wanted.encode()).hexdigest())
PYTHON
}

# uv does not read the settings of pip, which may name the only registry that can be reached.
use_registry_of_pip() {
    local index
    index=$(.venv/bin/python -m pip config list | sed -n "s/^[a-z:]*\.index-url='\(.*\)'$/\1/p" | tail -n 1)
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX=$index
    fi
}

# Print the options of uv that choose PyTorch: none if its own index cannot be reached, which takes the ordinary one.
torch_options() { # choice, whether it is a new one
    local try said
    try=(.venv/bin/python -m uv pip install --python .venv/bin/python --dry-run --no-deps --reinstall-package torch)
    said=$(UV_HTTP_RETRIES=0 "${try[@]}" --torch-backend="$1" torch 2>&1 || true)
    if [[ $said == *"Failed to fetch"* ]]; then
        echo "install: PyTorch's own index cannot be reached (RVTSSM_TORCH=$1), so PyTorch comes from the ordinary" \
            "registry; on Linux this is the build with CUDA, which is several gigabytes larger" >&2
        return
    fi
    # PyTorch that is there may be of another choice with the same version.
    echo "--torch-backend=$1 ${2:+--reinstall-package torch --reinstall-package torchvision}"
}

install_package() { # extras
    local stamp=.venv/rvtssm-installed torch_file=.venv/rvtssm-torch extras_file=.venv/rvtssm-extras
    local wanted torch extras is_new options
    make_venv
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "install: .venv contains $(.venv/bin/python --version), needed is 3.11 or newer; remove it and try again" >&2
        return 1
    fi
    torch=${RVTSSM_TORCH:-$(cat "$torch_file" 2>/dev/null || echo auto)}
    extras=$({ cat "$extras_file" 2>/dev/null || true; printf '%s\n' "$@"; } | sed '/^$/d' | sort -u)
    extras=$(echo $extras) # one line
    wanted=$(wanted_stamp "$torch" "$extras")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    is_new=$([ "$(cat "$torch_file" 2>/dev/null)" = "$torch" ] || echo new)
    rm -f "$stamp"
    echo "install: installing the package and its dependencies into .venv (extras: ${extras:-none})"
    .venv/bin/python -m pip install --disable-pip-version-check --quiet uv
    use_registry_of_pip
    options=$(torch_options "$torch" "$is_new")
    # Compiled now, in parallel: where PYTHONDONTWRITEBYTECODE is set, as in many containers, every start of a command
    # would compile all that it imports. uv leaves out the package itself, which stays in the checkout.
    .venv/bin/python -m uv pip install --python .venv/bin/python --compile-bytecode $options \
        -c constraints.txt -e ".${extras:+[${extras// /,}]}"
    .venv/bin/python -m compileall -q rvtssm || true
    # Written last and in one step, so an interrupted installation leaves no stamp and is repeated.
    echo "$torch" >"$torch_file"
    printf '%s\n' $extras >"$extras_file"
    echo "$wanted" >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    install_package "$@"
    echo "install: done; activate with \`source .venv/bin/activate\`, then try \`rvtssm doctor\`"
fi
