#!/bin/sh
# Every global symbol starts with sop_; no wide register stands outside a file named for it.
#   tests/leaks.sh LIBSUPEROP.so LIBSUPEROP.a
so=${1:?usage: leaks.sh LIBSUPEROP.so LIBSUPEROP.a} a=${2:?usage: leaks.sh LIBSUPEROP.so LIBSUPEROP.a}
# what a sanitizer adds is not ours, nor are the constants of NVIDIA's C++ headers
own='^(sop_|__asan_|__odr_asan|__ubsan_|__tsan_|_ZN4cuda3std)'
bad=0
names=$( (nm -D --defined-only "$so" && nm -g --defined-only "$a") | awk 'NF == 3 { print $3 }' |
    grep -vE "$own" | sort -u)
if [ -n "$names" ]; then
    echo "globals without sop_: $names"
    bad=1
fi
# Members of an archive may share a name (softmax.c.o), so objdump's own headings say which is which.
wide=$(objdump -d --no-show-raw-insn "$a" | awk '
    /file format/ { object = $1; sub(/:$/, "", object); wide = object ~ /_(avx2|avx512|vnni|amx)\.c\.o$/ }
    /^[0-9a-f]+ </ { at = $2 }
    !wide && /%[yz]mm|%k[0-7]|%tmm/ && !seen[object at]++ { print "wide registers: " object " " at }')
if [ -n "$wide" ]; then
    echo "$wide"
    bad=1
fi
exit $bad
