/* libFuzzer: any bytes as a GGUF file; seeds are the .gguf files of tests/data/tiny. */
#include "model/file_walk.h"
#include "model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    sop_file *f = sop_file_create();
    if (f && sop_gguf_parse(f, bytes, n, "fuzz", 0) == SOP_OK && sop_file_seal(f) == SOP_OK)
        (void)walk(f);
    sop_file_close(f);
    return 0;
}
