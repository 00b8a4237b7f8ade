/* base/text.h: small help with words. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

/* How many single-character edits (insert, delete, replace, swap of neighbours) lead from a to b; for
 * "did you mean". Words over 63 characters count as far away. */
int sop_text_distance(const char *a, const char *b);

#endif
