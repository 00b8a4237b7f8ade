#!/bin/sh
# What the machine code of the CUDA kernels must be, read with cuobjdump: no local memory, registers for
# as many threads as the bounds say, the instructions that a hot kernel is there for, and floor kernels
# for every card.
#   tests/cubins.sh LIBSUPEROP.so
so=$(realpath "${1:?usage: cubins.sh LIBSUPEROP.so}")
cd "$(dirname "$0")/.." || exit 2
if ! dump=$(tools/cuda.sh cuobjdump 2>&1); then
    echo "skipped cubins: $dump"
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
PATH=$(dirname "$dump"):$PATH # it calls nvdisasm

# Names of kernels, and instructions that each of them has.
purpose='
(prefill|skinny|gemm)_sm90$   HGMMA     products by warpgroups
sop_stream_sm90$              [HQ]GMMA  the same, of codes where x has such
gemm_f8_sm90$                 QGMMA     products of codes by warpgroups
(prefill|skinny|sop_stream|gemm|gemm_f8)_sm90$   UTMALDG   loads by TMA
sop_few_sm90$                 HMMA      products by warps
sop_few_sm90$                 UTMALDG   loads by TMA
planes_sm90$                  IGMMA     products of integers by warpgroups
planes_sm90$                  UTMALDG   loads by TMA
layer_decode_sm90$            HMMA      products by warps
layer_decode_sm90$            LDGSTS[A-Z0-9.]*\.128   weights in 16 bytes
layers_stream_sm90$           HMMA      products by warps
layers_stream_sm90$           UBLKCP    weights in bulk copies
_wide$   (LDG|STG)\.E[A-Z0-9.]*\.128   16 bytes at a time, on the wider side
_sm80$   LDG[A-Z0-9.]*\.128       loads of 16 bytes
decode_ring_sm90$             LDGSTS[A-Z0-9.]*\.128   keys and values in 16 bytes
decode_few_ring_sm90$         UTMALDG   keys and values by TMA
'
# Bytes of local memory that kernels may have; all others keep to their registers.
allowed='
sop_linear_any   192   its arguments, taken by an index
sop_layer_decode_sm90   64   sincosf of large angles
sop_decode_sm80  40   addresses beside heads of 256, outside of the loop
sop_sample_split_first  24   the bound on registers, for many threads
sop_sample_split_third  176  the same, and the wishes of a row that its floor takes by their address
sop_prefill_sm80        48  places of the pieces of heads of 112; sums and scores take 192 registers
sop_prefill_sm90        24  an item beside masks and heads of 192, outside of the loop; 8 in the 40 registers of what loads
sop_gemm_sm80           48  what is multiplied next, between tiles of 128 x 256 alone
sop_layers_decode_sm90  72  sincosf of large angles; for two tokens the bound on registers of 640 threads
sop_layers_stream_sm90  32  the same angles
sop_layernorm_wide      16  the bound on registers, for many threads
sop_norm_grad_wide      72  the same
sop_attention_grad_mma  200 two sums of heads of 128
sop_attention_grad_wgmma 176 the same, with a window or a cap
sop_column_sums         16  its outputs, taken by an index
sop_matmul_any          16  its arguments, on 8.9
sop_stream_sm90         8   with i8_128 and 16 or 32 columns: what is set up once
'
# Each op with a floor row has kernels of its name that are not hot.
floors=$(ls src/ops/*/*_cuda.cu | sed 's,src/ops/\(.*\)/.*,sop_\1_,')

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for arch in sm_80 sm_90a; do # what is for 8.9 is made of the same PTX as what is for 8.0
    cuobjdump -arch $arch -sass "$so" 2>&1 |
        grep -E '^cuobjdump|\.target|Function :|LDG|STG|MMA|UBLKCP' >"$tmp/$arch" &
done
wait
{
    echo "part usage"
    cuobjdump -res-usage "$so"
    echo "part bounds"
    cuobjdump -elf "$so" | grep -A 2 -E '^arch =|^\.nv\.info\._Z|EIATTR_MAX_THREADS'
    echo "part ptx" # the only place that tells blocks a multiprocessor
    cuobjdump -ptx "$so" | grep -E '^\.target|\.entry|^\.minnctapersm'
    echo "part code"
    cat "$tmp"/*
} 2>&1 | awk -v purpose="$purpose" -v allowed="$allowed" -v floors="$floors" '
    # sop_add_wide of _Z12sop_add_wideIfEv...
    function base(symbol,    n) {
        sub(/^_ZL?/, "", symbol)
        n = symbol + 0
        sub(/^[0-9]+/, "", symbol)
        return substr(symbol, 1, n)
    }
    function hex(text,    n, i) {
        for (i = 3; i <= length(text); i++)
            n = 16 * n + index("0123456789abcdef", substr(text, i, 1)) - 1
        return n
    }
    function up(n, step) { return int((n + step - 1) / step) * step }
    function fail(symbol, arch, what) {
        print "FAILED " symbol " on " arch ": " what
        bad[symbol, arch] = 1
        failed++
    }
    BEGIN {
        n = split(purpose, line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], word, / +/) > 1) {
            of[++n_purposes] = word[1]
            instruction[n_purposes] = word[2]
        }
        n = split(allowed, line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], word, / +/) > 1) most[word[1]] = word[2]
    }

    /^cuobjdump (fatal|error)/ { fail("the library", "any card", $0) }
    /^part / { part = $2 }
    part != "code" && /^arch = / { arch = $3 }

    part == "usage" && /^ Function / { symbol = substr($2, 1, length($2) - 1) }
    part == "usage" && /REG:/ {
        for (i = split($0, field, /[: ]+/) - 1; i >= 1; i--) use[field[i]] = field[i + 1]
        kernels[++n_kernels] = symbol
        arch_of[n_kernels] = arch
        there[symbol, arch] = 1
        registers[symbol, arch] = use["REG"]
        stack[symbol, arch] = use["STACK"]
    }

    part == "bounds" && /^\.nv\.info\./ { symbol = substr($1, 10) }
    part == "bounds" && /^\tValue:/ { threads[symbol, arch] = hex($2) * hex($3) * hex($4) }

    part == "ptx" && /^\.target/ && $2 !~ /^sm_80,?$/ { fail("PTX", $2, "that of sm_80 serves all") }
    part == "ptx" && /\.entry/ {
        symbol = $0
        gsub(/.*\.entry |\(.*/, "", symbol)
        there[symbol, "ptx"] = 1
    }
    part == "ptx" && /^\.minnctapersm/ { blocks[symbol] = $2 }

    part == "code" && /\.target/ { arch = $2 }
    part == "code" && /Function :/ { symbol = $3 }
    part == "code" && /\/\*.*\*\// {
        for (i = 1; i <= n_purposes; i++) if ($0 ~ instruction[i]) found[symbol, arch, i] = 1
    }

    END {
        for (k = 1; k <= n_kernels; k++) {
            symbol = kernels[k]
            arch = arch_of[k]
            name = base(symbol)
            if (stack[symbol, arch] > most[name] + 0)
                fail(symbol, arch, stack[symbol, arch] " bytes of local memory")
            t = (symbol, arch) in threads ? threads[symbol, arch] : 1024
            b = symbol in blocks ? blocks[symbol] : 1
            if (up(registers[symbol, arch], 8) * up(t, 32) * b > 65536)
                fail(symbol, arch, registers[symbol, arch] " registers are too many for " b " x " t \
                    " threads" ((symbol, arch) in threads ? "" : ", as it has no __launch_bounds__"))
            for (i = 1; i <= n_purposes; i++) if (arch != "sm_89" && name ~ of[i]) {
                n_of[i]++
                if (!((symbol, arch, i) in found)) fail(symbol, arch, "no " instruction[i])
            }
            if (arch == "sm_80")
                for (i = split("sm_89 sm_90a ptx", other, " "); i >= 1; i--)
                    if (!((symbol, other[i]) in there)) fail(symbol, other[i], "not there, though it is on sm_80")
            if (arch == "sm_80" && name !~ /_(wide|sm80|sm90)$/) floor_names = floor_names " " name
            if (!((symbol, arch) in bad)) passed++
        }
        for (i = 1; i <= n_purposes; i++)
            if (!n_of[i]) fail(of[i], "any card", "no kernel has such a name")
        n = split(floors, floor, "\n")
        for (i = 1; i <= n; i++) {
            if (index(floor_names, " " floor[i])) passed++
            else fail(floor[i] "*", "sm_80", "its floor row has no kernel")
        }
        print passed + 0 " passed, " failed + 0 " failed, 0 skipped"
        exit failed > 0
    }'
