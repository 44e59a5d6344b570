# Sourced by the other scripts: makes the project's .venv when it is absent, puts it first on PATH, installs extras.
# PYTHON names the interpreter to use; without it the first Python 3.11 or newer on PATH is taken.

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: EdgePrec needs Python 3.11 or newer, and found none (looked for ${PYTHON:-python3, python3.13, python3.12, python3.11}): install one, or name it with PYTHON=/path/to/python" >&2
    return 1
}

make_venv() {
    if [ -d .venv ] && ! is_recent .venv/bin/python; then
        echo "error: $PWD/.venv holds no working Python 3.11 or newer: remove that folder and run this again" >&2
        return 1
    fi
    if [ ! -d .venv ]; then
        local python
        python=$(find_python)
        echo "making .venv with $python"
        if ! "$python" -m venv .venv; then
            rm -rf .venv
            echo "error: $python cannot make a virtual environment: on Debian or Ubuntu install python3-venv, then run this again" >&2
            return 1
        fi
    fi
    PATH="$PWD/.venv/bin:$PATH"
    export PATH PIP_DISABLE_PIP_VERSION_CHECK=1
}

# install EXTRAS: install EdgePrec editable with these extras, unless that was done since pyproject.toml last changed.
install() {
    local stamp=".venv/installed-${1//,/-}"
    if [ ! "$stamp" -nt pyproject.toml ]; then
        python -m pip install -qq --editable ".[$1]"
        touch "$stamp"
    fi
}
