# What the test scripts share: sh tests/X.sh ends with "N passed, N failed, N skipped".
passed=0 failed=0 skipped=0
tmp=$(mktemp -d)
on_exit=:
trap 'eval "$on_exit"; rm -rf "$tmp"' EXIT

# check SENTENCE COMMAND...: passes when the command does.
check() {
    sentence=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $sentence: $*"
        tail -5 "$tmp/log"
    fi
}

skip() { # SENTENCE WHY
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# says CODE TEXT COMMAND...: it ends with this code and says this, in one line on stderr.
says() {
    want=$1 text=$2
    shift 2
    timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    cat "$tmp/err"
    echo "exit $got, wanted $want and '$text'"
    [ $got = "$want" ] && grep -qF -- "$text" "$tmp/err" && [ "$(wc -l <"$tmp/err")" = 1 ]
}

report() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
