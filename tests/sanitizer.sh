#!/bin/sh
# The rows of the card under compute-sanitizer, a row a process, as many at once as there are processors; a skip
# without it, or without a card. Libraries' own kernels are left out.
#   tests/sanitizer.sh memcheck|racecheck|initcheck|synccheck|all CHECK_OPS SUPEROP [ROW...]
# A row passes when its cheapest case, and those that begin within the first WITHIN seconds, ran without an error
# or a hazard. Kernels for whole layers run in steps of small models.
#   WITHIN=12 LIMIT=120 JOBS=16    seconds in which cases begin, until a process is killed; processes at once
usage="usage: sanitizer.sh TOOL|all CHECK_OPS SUPEROP [ROW...]"
tools=${1:?$usage} check_ops=${2:?$usage} superop=${3:?$usage}
shift 3
shapes=$(cd "$(dirname "$0")/data/shapes" && pwd)
end() { # PASSED FAILED SKIPPED
    echo "$1 passed, $2 failed, $3 skipped"
    [ "$2" = 0 ]
    exit
}
PATH=$PATH:/usr/local/cuda/bin
if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped sanitizer $tools: compute-sanitizer is not on PATH"
    end 0 0 1
fi
if "$check_ops" cuda row=add_cuda within=0.1 add | grep '^skipped: cuda device' >/dev/null; then
    echo "skipped sanitizer $tools: there is no card"
    end 0 0 1
fi
[ "$tools" = all ] && tools="racecheck memcheck initcheck synccheck"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export check_ops superop shapes logs
export WITHIN="${WITHIN:-12}" LIMIT="${LIMIT:-120}"

# A line for each process: TOOL OP ROW; of whole layers, the longest and so first, the model's shape and the sequences
# instead of OP.
rows="large64,1 layers_stream_sm90
large128,4 layers_stream_sm90
qwen2-half,1 layers_decode_sm90
head64,5 layer_decode_sm90
$("$check_ops" cuda list | awk '$3 != "vendor" { print $1, $2 }')"
for tool in $tools; do
    echo "$rows" | while read -r op row; do
        [ $# = 0 ] || echo " $* " | grep -q " $row " && echo "$tool $op $row"
    done
done >"$logs/all"
for row in "$@"; do
    grep -q " $row\$" "$logs/all" || { echo "FAILED sanitizer $tools: there is no row $row" && end 0 1 0; }
done
xargs -r -P "${JOBS:-$(nproc)}" -L 1 sh -c '
    log=$logs/$0.$1.$2
    case $1 in
    *,*) set -- "$superop" bench -m "synth:$shapes/${1%,*}.json" -b "${1#*,}" --sweep 64 --lengths 20:21 --device cuda ;;
    *) set -- "$check_ops" cuda within="$WITHIN" row="$2" "$1" ;;
    esac
    timeout -s KILL "$LIMIT" compute-sanitizer --tool "$0" --error-exitcode 99 "$@" >"$log" 2>&1
    echo $? >"$log.result"' <"$logs/all" 2>"$logs/killed"
passed=0 failed=0 skipped=0
while read -r tool op row; do
    log=$logs/$tool.$op.$row result=$(cat "$logs/$tool.$op.$row.result")
    if [ "$result" = 0 ] && grep '^no case ran' "$log"; then
        skipped=$((skipped + 1))
    elif [ "$op" = "${op%,*}" ] && ! grep -q '^[1-9][0-9]* passed, 0 failed' "$log"; then
        failed=$((failed + 1))
        echo "FAILED sanitizer $tool of $row ($op): nothing was checked, exit $result:"
        head -60 "$log"
    elif [ "$result" = 0 ] && grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$log"; then
        passed=$((passed + 1))
        echo "$tool $row: $(grep ' passed, ' "$log" | tail -1)"
    else
        failed=$((failed + 1))
        echo "FAILED sanitizer $tool of $row ($op), exit $result:"
        head -60 "$log"
    fi
done <"$logs/all"
end $passed $failed $skipped
