/* The configuration's reader against any bytes: no crash, no hang, a failure leaves the struct alone and
 * says where, and what was taken prints and reads back as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sop/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sop_config a, b;
    char text[8192];
    memset(&a, 0x5a, sizeof a);
    b = a;
    if (sop_config_read((const char *)data, size, "fuzz", &a) != SOP_OK) {
        if (memcmp(&a, &b, sizeof a) != 0 || strncmp(sop_last_error(), "fuzz:", 5) != 0) abort();
        return 0;
    }
    const size_t n = sop_config_print(&a, text, sizeof text);
    if (n >= sizeof text || sop_config_read(text, n, "print", &b) != SOP_OK ||
        memcmp(&a, &b, sizeof a) != 0)
        abort();
    return 0;
}
