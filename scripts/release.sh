#!/usr/bin/env bash
# Builds the wheel and the source distribution into dist/. Installs each in an empty environment, without Airflow, compares their files, and
# tries the wheel. Says how long each step takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/.venv/bin/python uv=$PWD/.venv/bin/uv lock=$PWD/requirements.lock jars=$PWD/.venv/share/windowmill/jars
packages=lib/python3.11/site-packages/windowmill
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() {  # step NAME COMMAND...
    local TIMEFORMAT="release: $1: %R s (%U s of processor time)"
    shift
    time "$@"
}

build() {
    rm -rf dist
    $python -m hatchling build -t wheel -t sdist -d dist
}

# PySpark comes as source alone, and building its wheel takes minutes: the environment gets that of this checkout, of the same lock.
take_pyspark() {
    local part
    $uv venv --quiet --python "$python" "$work/whl"
    for part in .venv/lib/python3.11/site-packages/{pyspark,pyspark-*.dist-info}; do
        copy "$part" "$work/whl/lib/python3.11/site-packages"
    done
}

copy() {  # copy FILE... FOLDER, by links where that is possible
    cp --recursive --link "$@" 2>/dev/null || cp --recursive --force "$@"
}

# Packages that windowmill needs are installed once: those of the source distribution would be the same.
install() {  # install FILE ENVIRONMENT OPTIONS...
    [ -d "$2" ] || $uv venv --quiet --python "$python" "$2"
    $uv pip install --quiet "${@:3}" --python "$2/bin/python" --constraint "$lock" "$PWD/$1"
}

# Numba knows compiled code by the time and size of its source: the wheel's files get the times and the code of this checkout's, which are
# the same. One kernel is left for `setup` to compile.
take_kernels() {
    local installed=$work/whl/$packages
    $python -m windowmill.windowing.kernels
    find windowing -name '*.py' -exec sh -c 'for file; do touch --no-create --reference "$file" "$0/$file"; done' "$installed" {} +
    find windowing -name '*.nb[ic]' ! -name '*hopping_windows*' -exec cp --parents --preserve=timestamps --target-directory "$installed" {} +
}

# Links to the jars of this checkout, whose digests `setup` compares; the archive of classes belongs to an environment, and is made anew.
take_jars() {
    mkdir "$work/jars"
    copy "$jars"/*.jar "$work/jars"
    export WINDOWMILL_JARS=$work/jars
}

set_up_again() {
    whl/bin/windowmill setup --json | $python -c 'import json, sys; assert all(step["result"] == "was there" for step in json.load(sys.stdin)["steps"])'
}

step "building" build
step "taking PySpark" take_pyspark
step "installing the wheel" install dist/*.whl "$work/whl"
step "installing the source distribution" install dist/*.tar.gz "$work/gz" --no-deps
diff --recursive --brief --exclude=__pycache__ "$work/whl/$packages" "$work/gz/$packages"
echo "release: both hold the same files; trying the wheel"
step "taking compiled kernels" take_kernels
take_jars
cd "$work"  # outside the checkout, whose folders would be found first
step "version" whl/bin/windowmill --version
step "setup" whl/bin/windowmill setup --json
step "setup again" set_up_again
step "tutorial" whl/bin/windowmill tutorial --folder "$work/tutorial" --json >/dev/null
step "validate" whl/bin/windowmill validate "$work/tutorial/pipeline.yaml" --source
echo "release: the wheel works"
