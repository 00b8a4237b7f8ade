#!/bin/sh
# The command line of superop: help, options, exit codes, and that a wrong word brings the right one.
#   tests/cli_test.sh SUPEROP
superop=$(realpath "${1:?usage: cli_test.sh SUPEROP}")
. "$(dirname "$(realpath "$0")")/lib.sh"
verbs="run tokenize detokenize info explain ops check bench tune pull"
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
check "a wrong verb brings the nearest" usage "did you mean 'bench'?" "$superop" bnech
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
check "a variant of another op is said" usage "is a variant of rmsnorm, not of add" \
    "$superop" check add --variant rmsnorm_ref
check "a model or an operator is benched, not both" usage "give one of them" \
    "$superop" bench rmsnorm -m x
check "ops lists each variant" prints "rmsnorm_ref" "$superop" ops
check "ops shows the keys of a shape" prints "x_stride" "$superop" ops rmsnorm
check "a shape can be checked" prints "0 failed" "$superop" check rmsnorm tokens=3 dim=77
check "the same shape can be timed" prints "rmsnorm_ref" \
    "$superop" bench rmsnorm tokens=3 dim=77 --seconds 0.05
check "weights of a shape are packed as each variant wants them" prints "layouts=both" \
    "$superop" bench linear m=1 n=32 k=64 w=bf16 --seconds 0.02
check "a pipe gets no bar and no colours" silent "$superop" check rmsnorm
check "a missing file is said with its name" says 3 "'/no/such.gguf'" "$superop" info /no/such.gguf
check "a model that is not pulled says how" says 3 "superop pull gemma3-270m" \
    env XDG_CACHE_HOME="$tmp" "$superop" info gemma3-270m
plugin() { # NAME [SED COMMAND...]: tests/plugins/vendor.c, changed
    from=$(dirname "$(realpath "$0")") name=$1
    shift
    sed "$@" "$from/plugins/vendor.c" >"$tmp/$name.c"
    ${CC:-cc} -shared -fPIC -I "$from/../include" "$tmp/$name.c" -o "$tmp/$name.so"
}
plugin right -e ''
plugin wrong -e 's/a\[i\] + b\[i\]/a[i] - b[i]/'
plugin slow -e 's/= call->desc;/&\n    for (volatile int i = 0; i < 100000; i++) continue;/'
plugin calls -e 's/= call->desc;/&\n    if (sop_workers(call->queue) < 1) return SOP_E_DEVICE;/'
plugin gates -e 's/{"add"}/{"gated"}/' -e '/return d->a_dtype/s/.*/    return d ? "the vendor does no gates" : NULL;/'
plugin spans -e 's/{"add"}/{NULL}/' -e 's/\.refuse = refuse,/.span = ops_of_span,/' \
    -e 's/^static const sop_row/static const char *const ops_of_span[] = {"rmsnorm", "linear", NULL};\n&/' \
    -e '/refuse(const void/s/static/__attribute__((unused)) static/'
check "a plug-in's variants are checked" prints "1 passed, 0 failed" \
    "$superop" check add tokens=3 dim=7 --variant vendor:add_f32 --plugin "$tmp/right.so"
check "a plug-in alone is checked on all cases" prints "vendor:add_f32                 8 passed" \
    "$superop" check --plugin "$tmp/right.so"
here() { (cd "$tmp" && "$superop" check --plugin right.so) && ! grep -q add_ref "$tmp/log"; }
check "a plug-in lies where one stands, and brings no other variant" here
fails() { "$superop" check add --plugin "$tmp/wrong.so" >"$tmp/out"; [ $? = 1 ] &&
    grep -q '^FAILED vendor:add_f32 at .*must be' "$tmp/out" && grep -q '^add_ref .* passed, worst' "$tmp/out"; }
check "a plug-in that is wrong is found out, alone" fails
check "a plug-in may call the library" prints " 0 failed" "$superop" check --plugin "$tmp/calls.so"
check "a plug-in's span is a skip" prints "0 passed, 0 failed, 1 skipped" \
    "$superop" check --plugin "$tmp/spans.so"
tuned() { XDG_CACHE_HOME=$tmp/tuned "$superop" "$@"; }
check "variants of a shape are measured" prints "1 shapes measured" \
    tuned tune rmsnorm tokens=3 dim=77 --seconds 0.02 --plugin "$tmp/right.so"
slow() { # a plug-in's slow add is first until it is measured
    tuned tune add tokens=3 dim=77 --seconds 0.05 --plugin "$tmp/slow.so" | tee "$tmp/out"
    grep -q '^  vendor:add_f32 .* served before$' "$tmp/out" && grep -q '^  add.* from now on$' "$tmp/out" &&
        tuned tune add tokens=3 dim=77 --seconds 0.05 --plugin "$tmp/slow.so" | grep -q '^  add.*  serves$'
}
check "the faster one serves from then on" slow
check "a plug-in is timed beside the library" prints "vendor:add_f32" \
    "$superop" bench add tokens=3 dim=77 --seconds 0.05 --plugin "$tmp/right.so"
check "a plug-in that is not there is said" says 3 "/no/such.so" \
    "$superop" bench add tokens=3 dim=77 --plugin /no/such.so
tiny=$(dirname "$(realpath "$0")")/data/tiny/llama/model.gguf
ask="$superop run -m $tiny --raw -p"
check "a model answers" prints "$("$superop" detokenize -m "$tiny" 200)" $ask "the dog" -n 1
check "one object with --json" prints '"prompt_ids":[315,83,256,299],"output_ids":[' \
    $ask "the dog" -n 2 --json
check "the last token may be looked behind" prints '"logprob":' $ask x -n 1 --json --logprobs 3
check "the same seed draws the same" sh -c "[ \"\$($ask x -n 9 --temperature 1 --seed 3 2>&1 | head -c 9)\" = \
    \"\$($ask x -n 9 --temperature 1 --seed 3 2>&1 | head -c 9)\" ]"
last_line() { $ask x -n 4 2>&1 | tail -1 | grep -q '^prompt . tokens, .* generation 4 tokens, .* tok/s'; }
check "the last line tells the speed" last_line
check "the prompt may come from a pipe" sh -c "echo dog | $superop run -m $tiny --raw -f - -n 1"
check "a conversation has turns" sh -c "printf 'hi\nho\n' |
    $superop run -m ${tiny%llama*}qwen2/model.gguf --chat -n 2 2>&1 | grep -c '^prompt' | grep -qx 2"
back() { [ "$(printf '%s' "$1" | "$superop" tokenize -m "$tiny" | "$superop" detokenize -m "$tiny")" = "$1" ]; }
check "text goes to ids and back" back "Grüße, 世界 🙂  x"
check "special text is text unless asked" sh -c "[ \$($superop tokenize -m $tiny -- '<|x|>' | wc -w) -gt 1 ]"
check "explain names a variant for each module" prints "linear_" "$superop" explain -m "$tiny"
check "explain tries a plug-in's variants" prints "not vendor:add_f32: the vendor does no gates" \
    "$superop" explain -m "$tiny" --plugin "$tmp/gates.so"
check "a longer length flips the path" prints "ring asks for" \
    "$superop" explain -m "$tiny" --length 70000
shape=synth:$(dirname "$tiny")/hf/config.json
check "a shape of random numbers can be timed" prints "decode" \
    "$superop" bench -m "$shape" --prefill 8 --decode 4 -r 2
check "a shape of random numbers is explained" prints "qkv projection" "$superop" explain -m "$shape"
check "a config.json of transformers 5 is a shape" prints "post norm" \
    "$superop" explain -m "synth:${tiny%llama*}gemma3/hf/config.json"
check "a shape may name a type" prints "bf16" "$superop" info "$shape:bf16"
check "a shape of random numbers does not talk" usage "has no words" \
    "$superop" run -m "$shape" -p hello
check "a wrong shape brings the shapes" says 3 "there are llama3-70b-layer" \
    "$superop" bench -m synth:qwen2-7
sweeps() { # TEXT OPTION...; a busy machine may have cliffs
    text=$1
    shift
    "$superop" bench -m "$shape" "$@" | grep -qF "$text"
}
check "a sweep takes some lengths" sweeps "a token at length n, 10 lengths: worst" \
    --sweep 9 --lengths 40:100 -b 2
check "or one, with every batch" sweeps "prompts of n tokens, every batch: worst" \
    --sweep 1 --lengths 20 -b 3
check "lengths that go down are said" usage "40:30: give FROM:TO" \
    "$superop" bench -m "$shape" --sweep 1 --lengths 40:30
printf '{"steps":[[3,40],[1],[130,2,9]]}' >"$tmp/steps.json"
check "a workload is run in chunks" prints "3 of 3 shapes served" \
    "$superop" bench --workload "$tmp/steps.json" -m "$shape" --chunk 32
check "a workload longer than the context is said" usage "a sequence of 130 tokens, --ctx allows 129" \
    "$superop" bench --workload "$tmp/steps.json" -m "$shape" --ctx 129
check "a wrong workload brings the nearest" usage "did you mean 'field'?" \
    "$superop" bench --workload feild
printf '{"steps":[[3,0]]}' >"$tmp/steps.json"
check "a length of 0 is said" says 3 "length 1 of step 0" \
    "$superop" bench --workload "$tmp/steps.json" -m "$shape"
tuned_model() {
    tuned tune -m "$tiny" --seconds 0.01 | tail -1 | grep -q 'shapes measured' &&
        tuned explain -m "$tiny" | grep -q 'not .*: measured slower here'
}
check "a model's shapes are measured, and explain says so" tuned_model
check "a batch of sequences can be timed" prints "ahead" \
    "$superop" bench -m "$tiny" --prefill 8 --decode 4 -r 2 --batch 3
check "a model can be timed" prints "decode" "$superop" bench -m "$tiny" --prefill 8 --decode 4 -r 2
check "a full disk is not success" sh -c "$superop help >/dev/full 2>'$tmp/full'; [ \$? = 1 ]"
report
