#!/usr/bin/env bash
# Builds the wheel and the source distribution into dist/. Installs each in an empty environment, without Airflow, compares their files, and
# tries the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/.venv/bin/python uv=$PWD/.venv/bin/uv lock=$PWD/requirements.lock jars=$PWD/.venv/share/windowmill/jars
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
$python -m hatchling build -t wheel -t sdist -d dist
# Packages that windowmill needs are installed once: those of the source distribution would be the same.
for file in dist/*.tar.gz dist/*.whl; do
    name=${file##*.}
    echo "release: installing $file"
    $uv venv --quiet --python "$python" "$work/$name"
    options=$([ "$name" = gz ] && echo --no-deps || true)
    $uv pip install --quiet $options --python "$work/$name/bin/python" --constraint "$lock" "$PWD/$file"
done
packages=lib/python3.11/site-packages/windowmill
diff --recursive --brief --exclude=__pycache__ "$work/whl/$packages" "$work/gz/$packages"
echo "release: both hold the same files; trying the wheel"

# Links to the jars of this checkout, whose digests `setup` compares; the archive of classes belongs to an environment, and is made anew.
mkdir "$work/jars"
cp --link "$jars"/*.jar "$work/jars" 2>/dev/null || cp "$jars"/*.jar "$work/jars"
export WINDOWMILL_JARS=$work/jars
(
    cd "$work"  # outside the checkout, whose folders would be found first
    whl/bin/windowmill --version
    whl/bin/windowmill setup --json
    whl/bin/windowmill setup --json | $python -c 'import json, sys; assert all(step["result"] == "was there" for step in json.load(sys.stdin)["steps"])'
    whl/bin/windowmill tutorial --folder "$work/tutorial" --json >/dev/null
    whl/bin/windowmill validate "$work/tutorial/pipeline.yaml" --source
)
echo "release: the wheel works"
