#!/bin/sh
# A header compiles alone and twice: those of users in C and C++, without a warning; the others in C.
cd "${1:-$(dirname "$0")/..}" || exit 2
isa="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c"
passed=0 failed=0
alone() { # HEADER COMPILER...
    header=$1
    shift
    if printf '#include "%s"\n#include "%s"\n' "$header" "$header" | "$@" -Wall -Wextra -Werror \
        -Iinclude -fsyntax-only -; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $header alone: $*"
    fi
}
for h in include/sop/*.h; do
    alone "${h#include/}" "${CC:-cc}" -x c -std=c11 -Wpedantic
    alone "${h#include/}" "${CXX:-c++}" -x c++ -std=c++17 -Wpedantic
done
for h in $(find src -name '*.h' | sort); do
    head -8 "$h" | grep -qE 'included after|after the vectors' && continue # a template, no header
    alone "${h#src/}" "${CC:-cc}" -x c -std=gnu11 -Isrc -Wno-unused-function $isa
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
