#!/bin/sh
# Builds the examples (a minute or two) and trains a small GPT on real text, sharded over four ranks on two cores:
#   sh examples/quickstart.sh [--text FILE] [more options of train_gpt]
# Writes inside this tree only (build/quickstart); asks apt, as root or by sudo, for what is missing, and says why.
set -eu
cd "$(dirname "$0")/.."

# Prose from a Debian package, unpacked but not installed: The Devil's Dictionary, Ambrose Bierce, 1911, public domain.
text_package=dict-devil
text_file=usr/share/dictd/devil.dict.dz
# One to two minutes on two cores.
training='--backend threads --ranks 4 --strategy full_shard --reshard keep_last:2 --steps 1200'

build=build/quickstart
text=''
if [ "${1:-}" = --text ]; then
    text=${2:?--text needs a file}
    shift 2
    [ -r "$text" ] || { echo "cannot read $text"; exit 1; }
fi
. tests/support/setup.sh

echo "Looking for what the example needs; missing here:"
need g++ "the compiler" has_command c++
need meson "the build system" has_command meson
need ninja-build "runs the build" has_command ninja
need pkg-config "finds Eigen and the other libraries" has_command pkg-config
need libeigen3-dev "matrix products" has_pkg eigen3
need nlohmann-json3-dev "the report" has_header nlohmann/json.hpp
need libcli11-dev "options" has_header CLI/CLI.hpp
need libxxhash-dev "checksum of the weights" has_header xxhash.h
[ -n "$needed" ] || echo "  nothing"
install_missing

mkdir -p "$build"
if [ -z "$text" ]; then
    text=$build/text.txt
    if [ ! -s "$text" ]; then
        echo "Fetching the text: package $text_package, unpacked into $build"
        command -v apt-get >/dev/null 2>&1 || { echo "No apt-get here: name a text with --text FILE"; exit 1; }
        apt_lists "$text_package"
        rm -rf "$build/text"
        mkdir -p "$build/text"
        if ! (cd "$build/text" && apt-get -qq download "$text_package" 2>apt.log && dpkg-deb -x ./*.deb .); then
            cat "$build/text/apt.log"
            echo "apt cannot fetch $text_package: name a text with --text FILE"
            exit 1
        fi
        gzip -dc <"$build/text/$text_file" >"$text.part"
        mv "$text.part" "$text"
    fi
fi

echo "Building; the log is $build/build.log"
again=''
[ ! -f "$build/build.ninja" ] || again=--reconfigure
# shellcheck disable=SC2086
if ! { meson setup $again -Dbuildtype=release -Dtests=disabled -Dbench=disabled -Dexamples=enabled "$build" &&
    meson compile -C "$build" train_gpt; } >"$build/build.log" 2>&1; then
    tail -n 40 "$build/build.log"
    exit 1
fi

# shellcheck disable=SC2086
"$build/examples/train_gpt" --text "$text" $training --report "$build/report.json" "$@"
echo
echo "The program is $build/examples/train_gpt (--help lists its options), its source examples/train_gpt.cpp;"
echo "the text was $text; losses, collectives, bytes and memory of this run are in $build/report.json."
