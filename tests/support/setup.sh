# shellcheck shell=sh
# Sourced by tests/run.sh and examples/quickstart.sh: names what is missing, says why, and asks apt for it.
#   need PACKAGE "why" TEST...   the work cannot go on without it
#   like PACKAGE "why" TEST...   the work goes on without it
#   install_missing              one apt call for all of them
# TEST is a command that succeeds where the thing is present already, from a package or not.
needed=''
liked=''

missing() { # missing PACKAGE WHY TEST...
    package=$1 why=$2
    shift 2
    ! "$@" >/dev/null 2>&1 || return 1
    printf '  %-20s %s\n' "$package" "$why"
}
need() { if missing "$@"; then needed="$needed $1"; fi; }
like() { if missing "$@"; then liked="$liked $1"; fi; }

has_command() { command -v "$1"; }
has_header() { # has_header NAME: the C++ compiler finds it
    printf '#include <%s>\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - -o /dev/null
}
has_pkg() { pkg-config --exists "$1"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}
known_to_apt() { # known_to_apt PACKAGE
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}
apt_lists() { # brings the package lists where they lack one of the packages
    for package in "$@"; do
        known_to_apt "$package" || { as_root apt-get -qq update; return; }
    done
}
install_missing() {
    [ -n "$needed$liked" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "No apt-get here. Please install:$needed; and, if you can:$liked"
        [ -z "$needed" ]
        return
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "Neither root nor sudo. As root: apt-get install$needed$liked"
        [ -z "$needed" ]
        return
    fi
    echo "Asking apt for:$needed$liked"
    # shellcheck disable=SC2086
    apt_lists $needed $liked || echo "apt-get update failed; going on with the lists that are here"
    offered=''
    for package in $liked; do
        if known_to_apt "$package"; then offered="$offered $package"; else echo "  $package is not offered here; going on without it"; fi
    done
    # shellcheck disable=SC2086
    if [ -n "$offered" ] && ! apt_install $needed $offered; then
        echo "apt could not install all of them; trying only what is needed"
        offered=''
    fi
    # shellcheck disable=SC2086
    if [ -n "$needed" ] && [ -z "$offered" ]; then apt_install $needed; fi
}
apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}
