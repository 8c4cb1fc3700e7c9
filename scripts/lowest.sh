#!/usr/bin/env bash
# Runs the pure tests with the lowest versions that pyproject.toml allows; requirements.lock holds the highest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=$PWD/.venv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "lowest: installing"
$uv pip compile pyproject.toml --all-extras --quiet --resolution lowest-direct --python-version 3.11 --output-file "$work/requirements.txt"
$uv venv --quiet --python .venv/bin/python "$work/venv"
$uv pip install --quiet --python "$work/venv/bin/python" --requirement "$work/requirements.txt"
$uv pip install --quiet --python "$work/venv/bin/python" --no-deps --no-build-isolation --editable .
# The lock installs another numba or numpy: kernels compiled by one are not read by the other.
NUMBA_CACHE_DIR=$work/kernels HYPOTHESIS_PROFILE=few PATH=$work/venv/bin:$PATH \
    "$work/venv/bin/python" -m pytest -p no:cacheprovider -n logical --maxprocesses 4 --dist loadfile -m pure "$@"
