#!/bin/bash
# clang-tidy on the files that changed: since main; on main since the commit before, and where git knows
# neither, on all. A file is a test; what the seconds are too short for is a skip. Tests and kernels are
# left out: casts and index arithmetic in int are their idioms.
#   tests/tidy.sh [BUILD [FILE...]]    SECONDS_LEFT=35: when the last file may begin
cd "$(dirname "$0")/.." || exit 2
build=${1:-build/dev} limit=${SECONDS_LEFT:-35}
shift
rooms="src/base src/core src/harness src/plan src/super src/model tools"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null)
[ "$base" = "$(git rev-parse HEAD 2>/dev/null)" ] && base=
base=${base:-$(git rev-parse -q --verify HEAD^)}
if [ $# -gt 0 ]; then
    printf '%s\n' "$@"
elif [ -n "$base" ]; then
    git diff --name-only "$base" -- $rooms | sed 's/\.h$/.c/'
else
    find $rooms -name '*.c'
fi | sort -u | grep -v '_test\.c$' | while read -r f; do # those that are built
    grep -q "\"file\": \".*/$f\"" "$build/compile_commands.json" && echo "$f"
done >"$tmp/files"

tidy() { # FILE
    [ "$(date +%s)" -gt "$end" ] && echo "skipped $1: no time left" && return
    clang-tidy -p "$build" --quiet "$1" >"$tmp/$$" 2>/dev/null && echo "passed $1" && return
    cat "$tmp/$$"
    echo "FAILED $1"
}
export -f tidy
export build tmp end=$(($(date +%s) + limit))
xargs -P "$(nproc)" -I{} bash -c 'tidy {}' <"$tmp/files" | tee "$tmp/out"
n() { grep -c "^$1 " "$tmp/out"; }
echo "$(n passed) passed, $(n FAILED) failed, $(n skipped) skipped"
[ "$(n FAILED)" = 0 ]
