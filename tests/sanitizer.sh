#!/bin/sh
# The rows of the card on the small cases, under one tool of compute-sanitizer; a skip without it, or
# without a card.
#   tests/sanitizer.sh memcheck|racecheck|initcheck|synccheck CHECK_OPS [OP...]
#   SMALL=small=20000 tests/sanitizer.sh racecheck CHECK_OPS sample   of so many FLOPs: its bins, in shared
#                                                                     memory, take minutes on more
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
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compute-sanitizer --tool "$tool" --error-exitcode 99 "$check_ops" cuda "${SMALL:-small}" "$@" >"$log" 2>&1
result=$?
if grep -q '^skipped: cuda device' "$log"; then
    echo "skipped sanitizer $tool: $(sed -n 's/^skipped: //p' "$log")"
    end 0 0 1
fi
if [ $result != 0 ] || ! grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$log"; then
    echo "FAILED sanitizer $tool, exit $result:"
    head -60 "$log"
    end 0 1 0
fi
tail -2 "$log"
end 1 0 0
