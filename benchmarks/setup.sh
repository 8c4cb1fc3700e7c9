#!/usr/bin/env bash
# Environments of the peers that `make bench` compares with, below .venv-bench; may run again and does only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flink=2.3.0
parquet=flink-sql-parquet-$flink.jar
parquet_sha256=f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd

make_venv() { # name
    local venv=.venv-bench/$1 lock=benchmarks/$1.lock
    cmp -s "$lock" "$venv/installed.lock" && return
    echo "bench-setup: installing the packages of $lock"
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv"
    .venv/bin/uv pip install --quiet --python "$venv/bin/python" --require-hashes -r "$lock" || {
        echo "bench-setup: trying again by pip, which takes some minutes" >&2
        "$venv/bin/pip" install --quiet --require-hashes --disable-pip-version-check -r "$lock"
    }
    cp "$lock" "$venv/installed.lock"
}

# Flink reads Parquet with a jar of its own from Maven, fetched by the Ivy inside Spark, and with Hadoop classes, which Spark brings.
flink_jars() {
    local lib java settings=()
    lib=$(echo .venv-bench/flink/lib/python3*/site-packages/pyflink/lib)
    if ! echo "$parquet_sha256  $lib/$parquet" | sha256sum --check --status 2>/dev/null; then
        echo "bench-setup: fetching $parquet"
        java=$(.venv/bin/python -m windowmill.jobs.spark.jars --java)/bin/java
        scratch=$(mktemp -d)
        trap 'rm -rf "$scratch"' EXIT
        if [ -n "${WINDOWMILL_IVY_SETTINGS:-}" ]; then settings=(-settings "$WINDOWMILL_IVY_SETTINGS"); fi
        "$java" -cp "$(echo .venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar)" org.apache.ivy.Main -error "${settings[@]}" \
            -dependency org.apache.flink flink-sql-parquet $flink -notransitive -types jar \
            -cache "$scratch/cache" -retrieve "$scratch/[artifact]-[revision].[ext]" >"$scratch/said" 2>&1 || cat "$scratch/said" >&2
        echo "$parquet_sha256  $scratch/$parquet" | sha256sum --check --status ||
            { echo "bench-setup: $parquet could not be fetched; name your Maven mirror in an Ivy settings file by WINDOWMILL_IVY_SETTINGS" >&2; exit 1; }
        mv "$scratch/$parquet" "$lib/"
    fi
    cp -u .venv/lib/python3*/site-packages/pyspark/jars/hadoop-client-*.jar "$lib/"
}

make_venv peers
make_venv flink
flink_jars
