#!/bin/sh
# A build with CUDA on a machine without a driver: it loads, serves the CPU, and says what is missing.
#   tests/no_driver_test.sh SUPEROP LIBSUPEROP.so
superop=$(realpath "${1:?usage: no_driver_test.sh SUPEROP LIBSUPEROP.so}")
so=$(realpath "${2:?usage: no_driver_test.sh SUPEROP LIBSUPEROP.so}")
. "$(dirname "$(realpath "$0")")/lib.sh"
tiny=$(dirname "$(realpath "$0")")/data/tiny/llama/model.gguf

loads() { python3 -c 'import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_NOW)' "$1"; }
needs_none() { ! objdump -p "$1" | grep -E 'NEEDED .*(cuda|nv|stdc)'; }
check "the library loads" loads "$so"
check "it names no library of CUDA, nor that of C++" needs_none "$so"
check "nor does the command" needs_none "$superop"
check "the CPU's rows are right" "$superop" check rmsnorm
check "a model runs on the CPU" "$superop" run -m "$tiny" --raw -p "the dog" -n 2
card_of() { "$superop" ops linear | grep -q "^ *$1 .* needs $2"; }
check "ops says which card a hot row needs" card_of linear_gemm_sm90 "sm_90a alone"
check "ops says which card a floor row needs" card_of linear_cuda sm_80
check "and one that asks a library" card_of linear_cublaslt sm_80
mkdir "$tmp/old" && printf 'int cuDriverGetVersion(int *v)\n{\n    *v = 12040;\n    return 0;\n}\n' >"$tmp/old/cuda.c"
"${CC:-cc}" -shared -fPIC -o "$tmp/old/libcuda.so.1" "$tmp/old/cuda.c"
check "a driver of before is said with its number" says 3 "the driver is for CUDA 12.4, superop needs 13." \
    env LD_LIBRARY_PATH="$tmp/old" "$superop" check rmsnorm --device cuda
for verb in "check rmsnorm" "run -m $tiny --raw -p x -n 1" "explain -m $tiny" \
    "bench -m $tiny --prefill 8 --decode 4 -r 1" "bench rmsnorm tokens=1 dim=8"; do
    if loads libcuda.so.1 2>/dev/null; then
        skip "${verb%% *} says that there is no driver" "there is one"
    else
        check "${verb%% *} says that there is no driver" says 3 "there is no NVIDIA driver" \
            "$superop" $verb --device cuda
    fi
done
report
