#include "model/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "model/file_index.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model/synth.h"

/* A file that was cut while it was read would fault later, where nobody expects it. */
static sop_status still_whole(const sop_file *f)
{
    struct stat st;
    for (size_t i = 0; i < f->n_maps; i++)
        if (fstat(f->maps[i].fd, &st) != 0 || (uint64_t)st.st_size < f->maps[i].size)
            return sop_fail(SOP_E_IO, "%s: it was cut while it was opened", f->maps[i].path);
    return SOP_OK;
}

static sop_status open_any(sop_file *f, const char *path)
{
    static const char ending[] = ".safetensors";
    const size_t n = strlen(path), e = sizeof ending - 1;
    struct stat st;
    if (sop_synth_is(path)) {
        f->kind = SOP_FILE_HF;
        return sop_synth_open(f, path);
    }
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const bool tensors = n > e && strcmp(path + n - e, ending) == 0;
    f->kind = folder || tensors ? SOP_FILE_HF : SOP_FILE_GGUF;
    SOP_TRY(folder    ? sop_safetensors_open_folder(f, path)
            : tensors ? sop_safetensors_open(f, path)
                      : sop_gguf_open(f, path));
    return still_whole(f);
}

sop_status sop_file_open(const char *path, sop_file **out)
{
    *out = NULL;
    sop_file *f = sop_file_create();
    if (!f) return SOP_E_NOMEM;
    const sop_status status = open_any(f, path);
    if (status == SOP_OK) {
        *out = f;
    } else {
        sop_file_close(f);
    }
    return status;
}

int sop_file_kind(const sop_file *f)
{
    return f->kind;
}

bool sop_file_tensor(const sop_file *f, const char *name, sop_tensor *out)
{
    const sop_file_tensor_entry *t = sop_file_find_tensor(f, name);
    if (t) *out = t->view;
    return t != NULL;
}

const char *sop_file_tensor_type(const sop_file *f, const char *name)
{
    const sop_file_tensor_entry *t = sop_file_find_tensor(f, name);
    return t ? t->type : NULL;
}

int64_t sop_file_n_tensors(const sop_file *f)
{
    return (int64_t)f->n_tensors;
}

const char *sop_file_tensor_name(const sop_file *f, int64_t i)
{
    return i < 0 || i >= (int64_t)f->n_tensors ? NULL : f->tensors[i].name;
}

size_t sop_file_mapped_bytes(const sop_file *f)
{
    size_t sum = 0;
    for (size_t i = 0; i < f->n_maps; i++) sum += f->maps[i].size;
    return sum;
}

bool sop_file_lent(const sop_file *f)
{
    return f->lent;
}

size_t sop_file_period(const sop_file *f)
{
    return f->ring ? SOP_SYNTH_RING : 0;
}

/* What text models keep at the top, models with images and text keep in "text_config". */
static const sop_meta *find(const sop_file *f, const char *key, bool is_array)
{
    char nested[256];
    const sop_meta *m = sop_file_find_meta(f, key);
    if (!m && f->kind == SOP_FILE_HF) {
        const int n = snprintf(nested, sizeof nested, "text_config.%s", key);
        m = n > 0 && (size_t)n < sizeof nested ? sop_file_find_meta(f, nested) : NULL;
    }
    return m && m->is_array == is_array ? m : NULL;
}

static const sop_meta *find_element(const sop_file *f, const char *key, int64_t i)
{
    const sop_meta *m = find(f, key, true);
    return m && i >= 0 && i < m->n ? m : NULL;
}

static const char *str_at(const sop_meta *m, int64_t i, size_t *bytes)
{
    if (!m || m->type != SOP_META_STR) return NULL;
    if (bytes) *bytes = (size_t)(m->from[i + 1] - m->from[i] - 1);
    return (const char *)m->data + m->from[i];
}

bool sop_file_i64(const sop_file *f, const char *key, int64_t *out)
{
    const sop_meta *m = find(f, key, false);
    return m && sop_meta_i64(m, 0, out);
}

bool sop_file_f64(const sop_file *f, const char *key, double *out)
{
    const sop_meta *m = find(f, key, false);
    return m && sop_meta_f64(m, 0, out);
}

bool sop_file_bool(const sop_file *f, const char *key, bool *out)
{
    const sop_meta *m = find(f, key, false);
    if (!m || m->type != SOP_META_BOOL) return false;
    *out = *(const uint8_t *)m->data != 0;
    return true;
}

const char *sop_file_str(const sop_file *f, const char *key, size_t *bytes)
{
    return str_at(find(f, key, false), 0, bytes);
}

int64_t sop_file_array(const sop_file *f, const char *key)
{
    const sop_meta *m = find(f, key, true);
    return m ? m->n : -1;
}

bool sop_file_array_i64(const sop_file *f, const char *key, int64_t i, int64_t *out)
{
    const sop_meta *m = find_element(f, key, i);
    return m && sop_meta_i64(m, i, out);
}

bool sop_file_array_f64(const sop_file *f, const char *key, int64_t i, double *out)
{
    const sop_meta *m = find_element(f, key, i);
    return m && sop_meta_f64(m, i, out);
}

const char *sop_file_array_str(const sop_file *f, const char *key, int64_t i, size_t *bytes)
{
    return str_at(find_element(f, key, i), i, bytes);
}

int64_t sop_file_n_keys(const sop_file *f)
{
    return (int64_t)f->n_metas;
}

const char *sop_file_key(const sop_file *f, int64_t i)
{
    return i < 0 || i >= (int64_t)f->n_metas ? NULL : f->metas[i].key;
}

void sop_file_forget(const sop_file *f, const sop_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    /* whole pages only: those at the ends hold parts of other tensors */
    const uintptr_t begin = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    const uintptr_t end = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
    for (size_t i = 0; i < f->n_maps; i++) {
        const uintptr_t base = (uintptr_t)f->maps[i].base;
        /* never a tensor of other memory, whose bytes would be lost */
        if (begin >= base && begin < end && end <= base + f->maps[i].size)
            (void)madvise((char *)t->data + (begin - (uintptr_t)t->data), end - begin,
                          MADV_DONTNEED);
    }
}
