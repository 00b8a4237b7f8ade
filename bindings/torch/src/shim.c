#include "shim.h"

#include <dlfcn.h>
#include <string.h>

struct sop_shim sop_shim;

/* A pointer to a function, from one to data: dlsym() knows no other. */
static void found(void *symbol, void *field)
{
    memcpy(field, &symbol, sizeof symbol);
}

const char *sop_shim_load(void)
{
    /* Python opens them without letting others see their names. */
    void *cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!cpu) return "libtorch_cpu.so";
#define X(field, name, result, parameters) \
    found(dlsym(cpu, name), &sop_shim.field); \
    if (!sop_shim.field) return name;
    SOP_SHIM_MAP(X)
#undef X
#define X(field, name, result, parameters) \
    if (cuda) found(dlsym(cuda, name), &sop_shim.field);
    SOP_SHIM_CUDA_MAP(X)
#undef X
    found(dlsym(cpu, "torch_delete_stable_ivalue"), &sop_shim.drop_value); /* 2.13 and newer */
    if (!sop_shim.drop_value) found(dlsym(cpu, "_ZdlPv"), &sop_shim.drop_value);
    return sop_shim.drop_value ? NULL : "operator delete";
}
