#include "core/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Linux gives the tile registers only to a process that asks. */
static int amx_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static uint32_t probe(void)
{
    uint32_t flags = 0;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* leaf 1: ecx bit 29 is f16c, a name that clang 14 does not know */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1))
        flags |= SOP_CPU_AVX2;
    if ((flags & SOP_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        flags |= SOP_CPU_AVX512;
    if ((flags & SOP_CPU_AVX512) && __builtin_cpu_supports("avx512vnni")) flags |= SOP_CPU_VNNI;
    /* leaf 7: edx bits 22 amx-bf16, 24 amx-tile, 25 amx-int8 */
    if ((flags & SOP_CPU_VNNI) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) &&
        (d >> 24 & 1) && (d >> 25 & 1) && amx_granted())
        flags |= SOP_CPU_AMX;
#endif
    const char *mask = getenv("SOP_CPU_MASK");
    if (mask) flags &= (uint32_t)strtoul(mask, NULL, 0);
    return flags;
}

uint32_t sop_cpu_features(void)
{
    static _Atomic uint64_t known; /* bit 32: probed */
    uint64_t k = atomic_load(&known);
    if (!k) {
        k = probe() | (uint64_t)1 << 32;
        atomic_store(&known, k);
    }
    return (uint32_t)k;
}

const char *sop_cpu_text(uint32_t features)
{
    if (features & SOP_CPU_AMX) return "avx2 avx512 vnni amx";
    if (features & SOP_CPU_VNNI) return "avx2 avx512 vnni";
    if (features & SOP_CPU_AVX512) return "avx2 avx512";
    return features & SOP_CPU_AVX2 ? "avx2" : "none";
}
