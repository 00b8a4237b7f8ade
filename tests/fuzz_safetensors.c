/* libFuzzer: any bytes as a safetensors file and, when they begin with '{', as a config.json; seeds
 * are these files of tests/data/tiny. */
#include "model/file_walk.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    sop_file *f = sop_file_create();
    if (!f) return 0;
    f->kind = SOP_FILE_HF;
    const sop_status s = n > 0 && bytes[0] == '{'
                             ? sop_config_parse(f, (const char *)bytes, n, "fuzz")
                             : sop_safetensors_parse(f, bytes, n, "fuzz", 0);
    if (s == SOP_OK && sop_file_seal(f) == SOP_OK) (void)walk(f);
    sop_file_close(f);
    return 0;
}
