#include "plan/machine.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "core/cpu.h"

sop_status sop_cache_dir(char *out, size_t cap)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int has_cache = cache && *cache == '/'; /* a relative one does not count, says XDG */
    int n = 0;
    if (!has_cache && (!home || !*home))
        return sop_fail(SOP_E_NOT_FOUND, "neither XDG_CACHE_HOME nor HOME names a folder");
    if (has_cache)
        n = snprintf(out, cap, "%s/superop", cache);
    else
        n = snprintf(out, cap, "%s/.cache/superop", home);
    if (n < 0 || (size_t)n >= cap)
        return sop_fail(SOP_E_LIMIT, "the cache's path has %d bytes, at most %zu", n, cap - 1);
    return SOP_OK;
}

sop_status sop_make_dirs(const char *path)
{
    char part[4096];
    const size_t n = strlen(path);
    if (n >= sizeof part)
        return sop_fail(SOP_E_LIMIT, "the path has %zu bytes, at most %zu", n, sizeof part - 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i]) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return sop_fail(SOP_E_IO, "%s: %s", part, strerror(errno));
    }
    return SOP_OK;
}

/* The value of a line "key : value" of the first processor. */
static void cpu_line(const char *key, char *out, size_t cap)
{
    char row[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    while (f && !out[0] && fgets(row, sizeof row, f)) {
        const char *colon = strchr(row, ':');
        if (colon && strncmp(row, key, strlen(key)) == 0)
            (void)snprintf(out, cap, "%.*s", (int)strcspn(colon + 1, "\n"), colon + 1);
    }
    if (f) (void)fclose(f);
}

void sop_fingerprint(const char *device_name, const sop_facts *facts,
                     char out[SOP_FINGERPRINT_TEXT])
{
    char model[96], part[32];
    if (facts->kind != SOP_DEVICE_CPU) {
        (void)snprintf(out, SOP_FINGERPRINT_TEXT, "%s, features %u, %d workers", device_name,
                       facts->features, facts->workers);
        return;
    }
    cpu_line("model name", model, sizeof model);
    if (!model[0]) { /* ARM has numbers instead */
        cpu_line("CPU implementer", model, sizeof model);
        cpu_line("CPU part", part, sizeof part);
        (void)strncat(model, part, sizeof model - strlen(model) - 1);
    }
    (void)snprintf(out, SOP_FINGERPRINT_TEXT, "%s, %s, %ld cores",
                   model[0] ? model + strspn(model, " ") : device_name,
                   sop_cpu_text(facts->features), sysconf(_SC_NPROCESSORS_CONF));
}

struct code_search {
    uintptr_t address;
    char *out;
};

/* Called for each loaded object: its notes lie in memory. */
static int find_build_id(struct dl_phdr_info *object, size_t size, void *arg)
{
    const struct code_search *search = arg;
    int holds = 0;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        const uintptr_t at = object->dlpi_addr + p->p_vaddr;
        holds |= p->p_type == PT_LOAD && search->address - at < p->p_memsz;
    }
    if (!holds) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type != PT_NOTE) continue;
        const uintptr_t at = object->dlpi_addr + p->p_vaddr;
        const unsigned char *note = (const void *)at; // NOLINT(performance-no-int-to-ptr)
        for (size_t left = p->p_memsz; left >= sizeof(ElfW(Nhdr));) {
            const ElfW(Nhdr) *h = (const void *)note;
            const size_t name = ((size_t)h->n_namesz + 3) & ~(size_t)3;
            const size_t desc = ((size_t)h->n_descsz + 3) & ~(size_t)3;
            if (name + desc > left - sizeof *h) break;
            const unsigned char *id = note + sizeof *h + name;
            if (h->n_type == NT_GNU_BUILD_ID && h->n_namesz == 4 &&
                memcmp(note + sizeof *h, "GNU", 4) == 0) {
                for (size_t k = 0; k < h->n_descsz && 2 * k + 2 < SOP_CODE_ID_TEXT; k++)
                    (void)snprintf(search->out + 2 * k, 3, "%02x", id[k]);
                return 1;
            }
            note += sizeof *h + name + desc;
            left -= sizeof *h + name + desc;
        }
    }
    (void)snprintf(search->out, SOP_CODE_ID_TEXT, "path-%016llx",
                   (unsigned long long)sop_hash(object->dlpi_name, strlen(object->dlpi_name), 0));
    return 1;
}

void sop_code_id(sop_status (*run)(const sop_call *call), char out[SOP_CODE_ID_TEXT])
{
    struct code_search search = {(uintptr_t)run, out};
    (void)snprintf(out, SOP_CODE_ID_TEXT, "unknown");
    (void)dl_iterate_phdr(find_build_id, &search);
}
