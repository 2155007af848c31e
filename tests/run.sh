#!/bin/sh
# Builds and runs all tests: sh tests/run.sh [GROUP...]
# Groups: unit headers compile threads sanitize mpi consumers examples docs. RESHARD_BUILD names another build folder.
# The last line is "N passed, N failed, N skipped"; the exit status is 0 where something ran and nothing failed.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${RESHARD_BUILD:-build/tests}
groups=${*:-unit headers compile threads sanitize mpi consumers examples docs}
. tests/support/setup.sh

echo "Looking for what the tests need; missing here:"
need g++ "the compiler" has_command c++
need meson "the build system" has_command meson
need ninja-build "runs the build" has_command ninja
need python3 "runs the checking scripts" has_command python3
need doctest-dev "the test framework" has_header doctest/doctest.h
like pkg-config "finds libraries; one way to use the library" has_command pkg-config
like cmake "two more ways to use the library" has_command cmake
like libopenmpi-dev "the MPI backend" has_command mpicxx
like openmpi-bin "starts its ranks" has_command mpirun
like libeigen3-dev "matrix products of the examples" has_header eigen3/Eigen/Core
like nlohmann-json3-dev "reports of the examples" has_header nlohmann/json.hpp
like libcli11-dev "options of the examples" has_header CLI/CLI.hpp
like libxxhash-dev "checksums of the examples" has_header xxhash.h
[ -n "$needed$liked" ] || echo "  nothing"
if ! install_missing; then
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi

mkdir -p "$build"
results=$build/results.jsonl
rm -f "$results"
clock() { date +%s; }
begin=$(clock)
quietly() { # quietly WHAT COMMAND...: the output is shown where the command fails
    what=$1
    shift
    if ! "$@" >"$build/$what.log" 2>&1; then
        tail -n 80 "$build/$what.log"
        python3 tests/support/report.py add-failure "$results" "$what" "failed, the log is $build/$what.log"
        python3 tests/support/report.py end "$results"
        exit 1
    fi
}
again=''
[ ! -f "$build/build.ninja" ] || again=--reconfigure
# shellcheck disable=SC2086
quietly configure meson setup $again -Dtests=enabled -Ddebug=false -Doptimization=1 -Dfast_examples=false "$build"
quietly build meson compile -C "$build"
echo "built in $(($(clock) - begin)) s"

for group in $groups; do
    start=$(clock)
    rm -f "$build/meson-logs/$group.json"
    meson test -C "$build" --no-rebuild --suite "$group" --logbase "$group" >"$build/$group.log" 2>&1
    python3 tests/support/report.py add "$results" "$group" $(($(clock) - start)) "$build/meson-logs/$group.json"
done
echo "all in $(($(clock) - begin)) s; logs are in $build"
python3 tests/support/report.py end "$results" "$build/tests/skipped.txt"
