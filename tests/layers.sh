#!/bin/sh
# Each room of src/ may include itself and the rooms to its left; tools may include all of them.
#   tests/layers.sh [ROOT]
order="base core jit ops harness plan tune super giant model engine server"
cd "${1:-$(dirname "$0")/..}" || exit 2
{
    grep -rnoE '^ *# *include +"[a-z_]+/' src --include=*.c --include=*.h --include=*.cu --include=*.cuh
    grep -rnoE '^ *# *include +"[a-z_./]+' include examples bindings 2>/dev/null # the API alone
} | awk -F: -v order="$order" '
    BEGIN { n = split(order, a, " "); for (i = 1; i <= n; i++) rank[a[i]] = i }
    {
        split($1, path, "/")
        to = $3
        sub(/.*"/, "", to)
        sub(/\/.*/, "", to)
        if (to == "sop") next
        if (path[1] != "src" && !(to in rank)) next
        if (path[1] == "src" && to in rank && path[2] in rank && rank[to] <= rank[path[2]]) next
        print "upward: " $0
        bad = 1
    }
    END { exit bad }'
