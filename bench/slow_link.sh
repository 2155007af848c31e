#!/usr/bin/env bash
# What the policies save on a slow link, on pretend hosts: every host has its own network and host name on this machine,
# and a capped link to a bridge that joins them. Nothing of it is seen outside, and all of it ends with this script.
#
#   bench/slow_link.sh PROGRAM RESULTS [RATE...]   e.g. bench/slow_link.sh build/bench/slow_link results 200mbit none
#
# PROGRAM is built from bench/slow_link.cpp. Lines are appended to RESULTS, for bench/slow_link.py, which takes the best
# of several runs. First 4 hosts with one rank each at 1gbit, then 2 hosts with two ranks each at every RATE (50mbit
# 100mbit 200mbit 500mbit none). In the environment: ROUNDS=5, how often each figure is measured;
# EAGER_LIMIT=65536 gives Open MPI its own default for the length of messages that it sends without asking.
# `nice -n -10` before it keeps other work on the machine from being measured.
# Needs root, iproute2, util-linux, Open MPI and the kernel's bridge, veth and tbf; else it says what is missing and
# ends with 77.
set -euo pipefail

missing() { echo "slow_link.sh: skipped: $1" >&2; exit 77; }
if [ "${1:-}" != --inside ]; then
    [ $# -ge 2 ] || { sed -n '5,13p' "$0" | sed 's/^# \?//' >&2; exit 2; }
    [ "$(id -u)" = 0 ] || missing "needs root, to make network namespaces"
    for tool in ip tc; do command -v "$tool" >/dev/null || missing "needs $tool (iproute2)"; done
    for tool in unshare nsenter setpriv; do command -v "$tool" >/dev/null || missing "needs $tool (util-linux)"; done
    mpirun --version 2>/dev/null | grep -q "Open MPI" || missing "needs mpirun of Open MPI"
    [ -x "$1" ] || { echo "slow_link.sh: $1 is not a program; meson compile -C build slow_link" >&2; exit 2; }
    for rate in "${@:3}"; do
        [[ $rate =~ ^([1-9][0-9]*mbit|none)$ ]] || { echo "slow_link.sh: RATE $rate: 200mbit, or none" >&2; exit 2; }
    done
    unshare --net --uts --mount --pid --fork true 2>/dev/null || missing "this root may not make namespaces"
    folder=$(mktemp -d)
    inner=
    trap 'rm -rf "$folder"' EXIT
    trap '[ -z "$inner" ] || kill -KILL "$inner" 2>/dev/null || true; exit 130' INT TERM HUP
    # The rest runs as process 1 of a process namespace: when it ends, or unshare does, or this script is killed, the
    # kernel ends everything in there, and the networks go with their last process.
    setpriv --pdeathsig KILL unshare --net --uts --mount --pid --fork --kill-child --mount-proc \
        bash "$0" --inside "$folder" "$(realpath "$1")" "$(realpath "$2")" "${@:3}" &
    inner=$!
    status=0
    wait "$inner" || status=$?
    exit "$status"
fi

folder=$2 program=$3 results=$4
rates=("${@:5}")
[ ${#rates[@]} -gt 0 ] || rates=(50mbit 100mbit 200mbit 500mbit none)
rounds=${ROUNDS:-5} eager=${EAGER_LIMIT:-1100000} net=10.213.77   # addresses that exist only in here
trap 'exit 130' INT TERM

# host NAME: a process that keeps NAME's network, host name, /etc/hosts and /dev/shm; its number is in $folder/NAME.
host() {
    unshare --net --uts --mount --propagation private sh -ec '
        hostname "$1"
        ip link set lo up
        mount --bind "$2/hosts" /etc/hosts
        mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm
        echo $$ >"$2/$1.new"; mv "$2/$1.new" "$2/$1"
        exec sleep infinity' host "$1" "$folder" </dev/null 2>"$folder/$1.log" &
    for _ in $(seq 200); do [ -s "$folder/$1" ] && return; sleep 0.05; done
    echo "slow_link.sh: cannot make $1: $(cat "$folder/$1.log")" >&2
    exit 1
}
on() { local number; number=$(cat "$folder/$1"); shift; nsenter -t "$number" --net --uts --mount -- "$@"; }

# up COUNT: node0, node1, ..., each with eth0, whose other end is in the bridge.
up() {
    count=$1
    echo "127.0.0.1 localhost" >"$folder/hosts"
    for ((i = 0; i < count; i++)); do echo "$net.$((i + 1)) node$i" >>"$folder/hosts"; done
    ip link add switch type bridge || missing "no bridge in the kernel"
    ip link set switch up
    for ((i = 0; i < count; i++)); do
        host "node$i"
        ip link add "port$i" type veth peer name eth0 netns "$(cat "$folder/node$i")" || missing "no veth in the kernel"
        ip link set "port$i" master switch up
        on "node$i" ip addr add "$net.$((i + 1))/24" dev eth0
        on "node$i" ip link set eth0 up
    done
}
down() {
    local number
    for ((i = 0; i < count; i++)); do
        number=$(cat "$folder/node$i")
        kill "$number"
        while kill -0 "$number" 2>/dev/null; do sleep 0.05; done
        rm "$folder/node$i"
        ip link del "port$i" 2>/dev/null || true   # gone already where the kernel was quick
    done
    ip link del switch
}
# cap RATE|none: what each host may send. Capped where it leaves the host and nowhere else: a second bucket behind the
# first one would only drop what the first lets through in a burst.
cap() {
    for ((i = 0; i < count; i++)); do
        on "node$i" tc qdisc del dev eth0 root 2>/dev/null || true
        [ "$1" = none ] || on "node$i" tc qdisc add dev eth0 root tbf rate "$1" burst 128kb latency 100ms ||
            missing "no tbf in the kernel"
    done
}
# mpi RANKS-A-HOST ARGUMENTS...: the program on all hosts. Where ssh would log in, a script enters the namespaces.
mpi() {
    local ranks=$1 hosts
    shift
    hosts=$(for ((i = 0; i < count; i++)); do printf 'node%d:%d,' "$i" "$ranks"; done)
    cat >"$folder/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
number=\$(cat "$folder/\$1"); shift
exec nsenter -t "\$number" --net --uts --mount -- /bin/sh -c "\$*"
AGENT
    chmod 755 "$folder/agent"
    # Every daemon of Open MPI takes all cores for its own; without mpi_yield_when_idle ranks would spin on them.
    # Above its eager limit Open MPI asks the receiver before it sends, and on a slow link question and answer queue
    # behind data. The library's receives are always posted, so its longest message (1 MiB) is let through unasked.
    on node0 env TMPDIR="$folder" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --timeout 600 -n $((count * ranks)) --host "${hosts%,}" --map-by "ppr:$ranks:node" --oversubscribe \
        --bind-to none --mca plm rsh --mca plm_rsh_agent "$folder/agent" --mca mpi_yield_when_idle 1 \
        --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 --mca pml ob1 --mca btl self,vader,tcp \
        --mca btl_tcp_eager_limit "$eager" --mca btl_tcp_rndv_eager_limit "$eager" \
        --mca btl_tcp_max_send_size $((eager > 131072 ? eager : 131072)) \
        "$program" "$@" | tee -a "$results"
}

ip link set lo up
up 4
cap 1gbit
mpi 1 ring "$rounds"
down
up 2
for rate in "${rates[@]}"; do
    cap "$rate"
    mpi 2 steps "$rate" "$rounds"
done
