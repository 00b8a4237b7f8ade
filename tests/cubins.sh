#!/bin/sh
# What the machine code for CUDA in the library must be, a kernel a time, read with cuobjdump.
#   tests/cubins.sh LIBSUPEROP.so
so=$(realpath "${1:?usage: cubins.sh LIBSUPEROP.so}")
cd "$(dirname "$0")/.." || exit 2
if ! dump=$(tools/cuda.sh cuobjdump 2>&1); then
    echo "skipped cubins: $dump"
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
PATH=$(dirname "$dump"):$PATH # it calls nvdisasm

# Names of kernels, and instructions that each of them is there for.
purpose='
_sm90$   HGMMA                        products by warpgroups
_sm90$   UTMALDG                      loads by TMA
_wide$   LDG\.E[A-Z0-9.]*\.128        loads of 16 bytes
_wide$   STG\.E[A-Z0-9.]*\.128        stores of 16 bytes
_sm80$   LDG[A-Z0-9.]*\.128           loads of 16 bytes
'
# Bytes of local memory that a kernel may have; where nothing stands, it has none: registers are enough.
local='
sop_linear_any   192   its arguments, taken by an index
'
floors=$(ls src/ops/*/*_cuda.cu | sed 's,src/ops/\(.*\)/.*,sop_\1_any,')

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for arch in sm_80 sm_89 sm_90a; do
    cuobjdump -arch $arch -sass "$so" 2>&1 |
        grep -E '^cuobjdump|\.target|Function :|LDG|STG|MMA' >"$tmp/$arch" &
done
wait

# Below, an arch is sm_80 and its like, or ptx. Many kernels have one name: a template's.
{
    echo "part usage"
    cuobjdump -res-usage "$so"
    echo "part bounds"
    cuobjdump -elf "$so" | grep -A 2 -E '^arch =|^\.nv\.info\._Z|EIATTR_MAX_THREADS'
    echo "part ptx"
    cuobjdump -ptx "$so" | grep -E '^\.target|\.entry|^\.maxntid|^\.minnctapersm'
    echo "part code"
    cat "$tmp"/*
    echo "part end"
} 2>&1 | awk -v purpose="$purpose" -v allowed="$local" -v floors="$floors" '
    # sop_add_wide of _Z12sop_add_wideIfEv...
    function base(symbol,    n) {
        sub(/^_ZL?/, "", symbol)
        n = symbol + 0
        sub(/^[0-9]+/, "", symbol)
        return substr(symbol, 1, n)
    }
    function hex(text,    n, i) {
        for (i = 3; i <= length(text); i++) n = 16 * n + index("0123456789abcdef", substr(text, i, 1)) - 1
        return n
    }
    function fail(symbol, arch, what) { print "FAILED " symbol " on " arch ": " what; bad[symbol, arch] = 1; failed++ }
    function up(n, step) { return int((n + step - 1) / step) * step }

    /^cuobjdump (fatal|error)/ { print "FAILED " $0; failed++ }
    /^part / { part = $2; next }
    part == "usage" && /^arch = / { arch = $3 }
    part == "usage" && /^ Function / { symbol = $2; sub(/:$/, "", symbol) }
    part == "usage" && /REG:/ {
        for (i = split($0, field, /[: ]+/) - 1; i >= 1; i--) use[field[i]] = field[i + 1]
        kernels[++n_kernels] = symbol SUBSEP arch
        there[symbol, arch] = 1
        has[base(symbol), arch] = 1
        registers[symbol, arch] = use["REG"]
        stack[symbol, arch] = use["STACK"]
    }
    part == "bounds" && /^arch = / { arch = $3 }
    part == "bounds" && /^\.nv\.info\./ { symbol = substr($1, 10) }
    part == "bounds" && /^\tValue:/ { threads[symbol, arch] = hex($2) * hex($3) * hex($4) }
    part == "ptx" && /\.entry/ {
        symbol = $0
        sub(/.*\.entry /, "", symbol)
        sub(/\(.*/, "", symbol)
        there[symbol, "ptx"] = 1
        has[base(symbol), "ptx"] = 1
    }
    part == "ptx" && /^\.target/ && $2 !~ /^sm_80,?$/ { fail("PTX", $2, "only that of sm_80 serves all newer cards") }
    part == "ptx" && /^\.minnctapersm/ { blocks[symbol] = $2 }
    part == "code" && /\.target/ { arch = $2 }
    part == "code" && /Function :/ {
        symbol = $3
        name = base(symbol)
        for (i = n_wants; i >= 1; i--) delete wants[i]
        n_wants = 0
        for (i = 1; i <= n_purposes; i++) if (name ~ of[i]) wants[++n_wants] = i
    }
    part == "code" && /^ +\/\*/ { for (i = 1; i <= n_wants; i++) if ($0 ~ instruction[wants[i]]) found[symbol, arch, wants[i]]++ }

    BEGIN {
        n = split(purpose, line, "\n")
        for (i = 1; i <= n; i++) if (line[i] != "") {
            split(line[i], word, / +/)
            of[++n_purposes] = word[1]
            instruction[n_purposes] = word[2]
        }
        n = split(allowed, line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], word, / +/) > 1) most[word[1]] = word[2]
    }
    END {
        if (part != "end" || !n_kernels) { print "FAILED no kernel was read"; failed++ }
        for (k = 1; k <= n_kernels; k++) {
            split(kernels[k], word, SUBSEP)
            symbol = word[1]
            arch = word[2]
            name = base(symbol)
            if (stack[symbol, arch] > most[name] + 0)
                fail(symbol, arch, stack[symbol, arch] " bytes of local memory, " most[name] + 0 " are allowed")
            # without bounds it may be launched with as many as there can be
            t = (symbol, arch) in threads ? threads[symbol, arch] : 1024
            b = symbol in blocks ? blocks[symbol] : 1
            if (up(registers[symbol, arch], 8) * up(t, 32) * b > 65536)
                fail(symbol, arch, registers[symbol, arch] " registers for " t " threads in " b " blocks are more than 65536")
            for (i = 1; i <= n_purposes; i++) if (name ~ of[i]) {
                n_of[i]++
                if (!found[symbol, arch, i]) fail(symbol, arch, "it has no " instruction[i])
            }
            if (arch == "sm_80")
                for (i = split("sm_89 sm_90a ptx", other, " "); i >= 1; i--)
                    if (!((symbol, other[i]) in there)) fail(symbol, other[i], "it is not there, but is on sm_80")
            if (!((symbol, arch) in bad)) passed++
        }
        for (i = 1; i <= n_purposes; i++) if (!n_of[i]) fail(of[i], "any card", "no kernel has such a name")
        n = split(floors, floor, /[ \n]+/)
        for (i = 1; i <= n; i++) {
            before = failed
            for (j = split("sm_80 sm_89 sm_90a ptx", other, " "); j >= 1; j--)
                if (!((floor[i], other[j]) in has)) fail(floor[i], other[j], "there is no such kernel")
            if (failed == before) passed++
        }
        print passed + 0 " passed, " failed + 0 " failed, 0 skipped"
        exit failed > 0
    }'
