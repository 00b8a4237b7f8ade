#include "base/text.h"

#include <string.h>

static int least(int a, int b)
{
    return a < b ? a : b;
}

int sop_text_distance(const char *a, const char *b)
{
    enum { MOST = 63 };
    const size_t na = strlen(a), nb = strlen(b);
    if (na > MOST || nb > MOST) return 1000;
    int d[MOST + 1][MOST + 1];
    for (size_t i = 0; i <= na; i++) d[i][0] = (int)i;
    for (size_t j = 0; j <= nb; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++)
        for (size_t j = 1; j <= nb; j++) {
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1,
                            d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[na][nb];
}
