#!/bin/sh
# The rows of the card on the small cases, under one tool of compute-sanitizer, an operator a process, as many at
# once as there are processors; a skip without it, or without a card.
#   tests/sanitizer.sh memcheck|racecheck|initcheck|synccheck CHECK_OPS [OP...]
#   SMALL=small=20000 ROW=row=NAME    cases of so many FLOPs, one row: what check_ops takes before an operator
tool=${1:?usage: sanitizer.sh TOOL CHECK_OPS [OP...]} check_ops=${2:?usage: sanitizer.sh TOOL CHECK_OPS [OP...]}
shift 2
end() { # PASSED FAILED SKIPPED
    echo "$1 passed, $2 failed, $3 skipped"
    exit "$2"
}
PATH=$PATH:/usr/local/cuda/bin
if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped sanitizer $tool: compute-sanitizer is not on PATH"
    end 0 0 1
fi
if "$check_ops" cuda add | grep '^skipped: cuda device' >/dev/null; then
    echo "skipped sanitizer $tool: $("$check_ops" cuda add | sed -n 's/^skipped: //p')"
    end 0 0 1
fi
[ $# -gt 0 ] || set -- $(cd "$(dirname "$0")/../src/ops" && ls -d */*_cuda.cu | sed 's,/.*,,')
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export tool check_ops logs
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c '
    small=${SMALL:-small}
    [ "$tool {}" = "racecheck sample" ] && small=${SMALL:-small=3000} # its bins, in shared memory, take minutes
    compute-sanitizer --tool "$tool" --error-exitcode 99 "$check_ops" cuda $small $ROW {} >"$logs/{}" 2>&1
    echo $? >"$logs/{}.result"'
passed=0 failed=0
for op; do
    if [ "$(cat "$logs/$op.result")" = 0 ] &&
        grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$logs/$op"; then
        passed=$((passed + 1))
        echo "$op: $(grep ' passed, ' "$logs/$op" | tail -1)"
    else
        failed=$((failed + 1))
        echo "FAILED sanitizer $tool of $op, exit $(cat "$logs/$op.result"):"
        head -60 "$logs/$op"
    fi
done
end $passed $failed 0
