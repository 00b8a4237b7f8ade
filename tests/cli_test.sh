#!/bin/sh
# The command line of superop: help, options, exit codes, and that a wrong word brings the right one.
#   tests/cli_test.sh SUPEROP
superop=$(realpath "${1:?usage: cli_test.sh SUPEROP}")
. "$(dirname "$(realpath "$0")")/lib.sh"
verbs="info ops check pull"
usage() { says 2 "$@"; }
prints() { # TEXT COMMAND...: ends with 0 and prints this
    text=$1
    shift
    "$@" </dev/null >"$tmp/out" 2>"$tmp/err"
    got=$?
    cat "$tmp/out" "$tmp/err"
    [ $got = 0 ] && grep -qF -- "$text" "$tmp/out"
}
silent() { # stderr is no terminal here, so no bar and no colour
    "$@" >"$tmp/out" 2>"$tmp/err" || return 1
    ! grep -q "$(printf '\033')" "$tmp/out" "$tmp/err"
}

for v in $verbs; do
    check "help names $v" prints "  $v " "$superop" help
    check "$v has help with examples" prints "examples:" "$superop" "$v" --help
    check "help $v is the same" sh -c "[ \"\$($superop help $v)\" = \"\$($superop $v -h)\" ]"
    check "$v knows no wrong option" usage "no option '--hepl'; did you mean '--help'?" \
        "$superop" "$v" --hepl
done
check "no verb is a wrong usage" sh -c "$superop >/dev/null; [ \$? = 2 ]"
check "exit codes are in the help" prints "  3  a file, a model or a download" "$superop" help
check "the version is said" prints "superop 0." "$superop" --version
check "a wrong verb brings the nearest" usage "did you mean 'check'?" "$superop" chekc
check "a verb far from all brings none" usage "there is no verb 'zzzzzzzz'" "$superop" zzzzzzzz
check "an option without its value is said" usage "--variant needs a value" \
    "$superop" check --variant
check "a flag takes no value" usage "--all takes no value" "$superop" check --all=yes
check "a value may follow an =" usage "no variant 'x'" "$superop" check --variant=x
check "a wrong operator brings the nearest" usage "did you mean 'rmsnorm'?" "$superop" ops rmsnrom
check "a wrong key brings the nearest" usage '"dim"' "$superop" check rmsnorm dmi=3
check "a wrong size is said with its number" usage "dim=-3" "$superop" check rmsnorm tokens=1 dim=-3
check "too many arguments are said" usage "3 arguments given" "$superop" ops a b c
check "after -- nothing is an option" usage "no operator '--help'" "$superop" ops -- --help
check "ops lists each variant" prints "rmsnorm_ref" "$superop" ops
check "ops shows the keys of a shape" prints "x_stride" "$superop" ops rmsnorm
check "a shape can be checked" prints "0 failed" "$superop" check rmsnorm tokens=3 dim=77
check "a pipe gets no bar and no colours" silent "$superop" check rmsnorm
check "a missing file is said with its name" says 3 "'/no/such.gguf'" "$superop" info /no/such.gguf
check "a model that is not pulled says how" says 3 "superop pull gemma3-270m" \
    env XDG_CACHE_HOME="$tmp" "$superop" info gemma3-270m
check "a full disk is not success" sh -c "$superop help >/dev/full 2>'$tmp/full'; [ \$? = 1 ]"
report
