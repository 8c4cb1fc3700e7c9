#!/usr/bin/env bash
# Builds the wheel and the source distribution into dist/, and tries each in an empty environment, without Airflow.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/.venv/bin/python uv=$PWD/.venv/bin/uv lock=$PWD/requirements.lock
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
$python -m hatchling build -t wheel -t sdist -d dist
for file in dist/*.whl dist/*.tar.gz; do
    name=${file##*.}
    echo "release: trying $file"
    $uv venv --quiet --python "$python" "$work/$name"
    $uv pip install --quiet --python "$work/$name/bin/python" --constraint "$lock" "$PWD/$file"
    # Outside the checkout, whose folders would be found first.
    (
        cd "$work"
        "$name/bin/windowmill" --version
        "$name/bin/windowmill" setup --json
        "$name/bin/windowmill" setup --json | $python -c 'import json, sys; assert all(step["result"] == "was there" for step in json.load(sys.stdin)["steps"])'
        "$name/bin/windowmill" tutorial --folder "$work/tutorial-$name" --json >/dev/null
        "$name/bin/windowmill" validate "$work/tutorial-$name/pipeline.yaml" --source
    )
done
packages=lib/python3.11/site-packages/windowmill
diff --recursive --brief --exclude=__pycache__ "$work/whl/$packages" "$work/gz/$packages"
echo "release: both work and hold the same files"
