#!/bin/bash
# make check: every test, in lanes, cheap ones first; the last line sums them all.
#   LANES="format dev"   only these
#   MODELS=all           all models that pull knows; without it, the default one
#   BUDGET=3600          seconds; a lane that would not fit any more is a counted skip
# A lane is a function that ends with a line "N passed, N failed, N skipped"; where it has none, it is
# one test. Its output is in build/check/LANE.log.
cd "$(dirname "$0")/.." || exit 2
cores=$(nproc)
budget=${BUDGET:-3600}
out=build/check
mkdir -p $out

fixed="setarch -R" # the thread sanitizer of gcc 12 needs addresses that are not random
$fixed true 2>/dev/null || fixed=

build() { # PRESET [TARGET...]
    preset=$1
    shift
    cmake --preset "$preset" && cmake --build build/"$preset" -j "$cores" ${*:+--target "$@"}
}
run_ctest() { # PRESET [CTEST OPTION...]
    dir=build/$1
    shift
    $fixed ctest --test-dir "$dir" -j "$cores" --output-on-failure --timeout 600 "$@"
    result=$?
    awk -f tests/ctest_count.awk "$dir"/Testing/Temporary/LastTest.log
    return $result
}

lane_format() { git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror; }
lane_layers() { tests/layers.sh; }
lane_headers() { tests/headers.sh; }
lane_dev() { build dev && run_ctest dev; }
lane_tidy() { cmake --preset dev && tests/tidy.sh; } # the files that changed
lane_clang() { build clang; }
lane_install() { build release && tests/install_test.sh build/release; }
without_card="cuda_test device_cuda_test ops_test plan_test"
lane_cuda() { # all of CUDA that needs no card
    if ! nvcc=$(tools/cuda.sh nvcc 2>&1); then
        echo "skipped cuda: $nvcc"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    grep -qsx "CMAKE_CUDA_COMPILER:[A-Z]*=$nvcc" build/cuda/CMakeCache.txt || rm -rf build/cuda
    cmake --preset cuda -DCMAKE_CUDA_COMPILER:STRING="$nvcc" &&
        cmake --build build/cuda -j "$cores" --target superop_shared superop_static superop_command \
            $without_card cuda_bench && run_ctest cuda -R "^(${without_card// /|}|cubins|no_driver_test|bundle_test|leaks)\$"
}
lane_asan() { build asan && run_ctest asan -E "^bench_test$"; } # times mean nothing there
threaded="pool_test log_test store_test kv_test model_test seams_test tokenizer_threads_test"
lane_tsan() { # a test forks and starts threads in the child
    export TSAN_OPTIONS=die_after_fork=0
    build tsan $threaded && run_ctest tsan -R "^(${threaded// /|})\$"
}
lane_fuzz() { # every target for 30 s, from the tiny models
    build fuzz fuzz_gguf fuzz_safetensors fuzz_tokenizer fuzz_config || return 1
    rm -rf $out/fuzz
    for target in gguf:*.gguf safetensors:*.safetensors safetensors:config.json \
        tokenizer:tokenizer.json config:*.yaml; do
        seeds=$out/fuzz/${target%%:*}
        mkdir -p "$seeds"
        find tests/data/tiny docs -name "${target#*:}" | while read -r f; do
            cp "$f" "$seeds/$(echo "$f" | tr / -)"
        done
    done
    printf '%s\n' $out/fuzz/* | xargs -P "$cores" -I{} sh -c '
        build/fuzz/tests/fuzz_$(basename {}) -max_total_time=30 -timeout=10 -rss_limit_mb=2048 \
            -verbosity=0 -print_final_stats=1 -artifact_prefix={}. {} >{}.log 2>&1 &&
            echo "fuzz_$(basename {}) passed" || { tail -20 {}.log; echo "FAILED fuzz_$(basename {})"; }' |
        tee $out/fuzz.results
    n=$(grep -c '^fuzz_.* passed$' $out/fuzz.results) bad=$(grep -c '^FAILED fuzz_' $out/fuzz.results)
    echo "$n passed, $bad failed, 0 skipped"
    [ "$bad" = 0 ]
}
lane_models() { # real models, right to the token; a model that cannot be pulled is a skip
    passed=0 failed=0 skipped=0
    build release superop_command accuracy || return 1
    names=smollm2-135m
    [ "$MODELS" = all ] && names="smollm2-135m qwen2.5-coder-0.5b gemma3-270m"
    for name in $names; do
        if ! why=$(build/release/superop pull $name 2>&1 >/dev/null); then
            echo "skipped $name: $why"
            skipped=$((skipped + 2))
            continue
        fi
        for numerics in exact fast; do
            build/release/tests/accuracy "${XDG_CACHE_HOME:-$HOME/.cache}/superop/$name.gguf" $name \
                $numerics >$out/accuracy.log
            result=$?
            cat $out/accuracy.log
            set -- $(tail -1 $out/accuracy.log | grep -E '^[0-9]+ passed')
            passed=$((passed + ${1:-0})) failed=$((failed + ${3:-0})) skipped=$((skipped + ${5:-0}))
            [ $result != 0 ] && [ "${3:-0}" = 0 ] && failed=$((failed + 1))
        done
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
lane_torch() { build dev superop_shared superop_torch superop_command && tests/torch_test.sh build/dev; }
lane_readme() { make -s && tests/readme.sh; }

# The seconds that each takes on two cores, from nothing.
lanes="format:5 layers:1 headers:15 dev:240 tidy:60 clang:40 install:50 models:240 readme:20 torch:360 cuda:720 asan:540 tsan:120 fuzz:120"

passed=0 failed=0 skipped=0
finish() { # LANE SECONDS LINE
    set -- "$1" "$2" $3
    passed=$((passed + $3)) failed=$((failed + $5)) skipped=$((skipped + $7))
    printf '%-9s %5d passed, %d failed, %d skipped  %4d s\n' "$1" "$3" "$5" "$7" "$2"
}
for entry in $lanes; do
    lane=${entry%:*} seconds=${entry#*:} log=$out/${entry%:*}.log from=$SECONDS
    case " ${LANES:-$lane} " in *" $lane "*) ;; *) continue ;; esac
    if [ $((SECONDS + seconds)) -gt "$budget" ]; then
        echo "$lane is left out: it takes $seconds s, and $((budget - SECONDS)) s of $budget s are left"
        finish "$lane" 0 "0 passed, 0 failed, 1 skipped"
        continue
    fi
    (lane_"$lane") >"$log" 2>&1
    result=$?
    line=$(tail -1 "$log" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$')
    if [ $result != 0 ]; then
        case $line in "" | *" 0 failed"*) line="0 passed, 1 failed, 0 skipped" ;; esac
        grep -E '^FAILED|[Ee]rror|\*\*\*' "$log" | head -20
        tail -5 "$log"
        echo "$lane failed; all it said is in $log"
    fi
    finish "$lane" $((SECONDS - from)) "${line:-1 passed, 0 failed, 0 skipped}"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
