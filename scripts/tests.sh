#!/usr/bin/env bash
# Every test: those of Spark, which share one session, and beside them all others. Spark leaves a part of two cores idle, and so does a
# real Airflow. The output of the others follows at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
log=$PWD/build/other-tests.log

others() {
    local failed=0
    $python -m pytest "$@" -m "not spark and not dag and not demo" || failed=1
    $python -m pytest -m "(dag or demo) and not spark" || failed=1
    return $failed
}

mkdir -p "${log%/*}"
echo "tests: those without Spark run beside those with it, and write to $log"
others "$@" >"$log" 2>&1 &
others=$!
trap 'pkill -TERM --parent $others 2>/dev/null || true' EXIT

failed=0
$python -m pytest -m spark || failed=1
echo "tests: those without Spark"
tail --lines=+1 --follow --pid=$others "$log"
wait $others || failed=1
exit $failed
