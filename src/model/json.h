/* model/json.h: a strict reader of JSON text that builds no tree: the caller pulls one piece after
 * the other. Stricter than the grammar in one way: strings hold no zero characters.
 *
 *     SOP_TRY(sop_json_enter(j, '{'));
 *     for (bool more;;) {
 *         SOP_TRY(sop_json_next(j, '}', &more));
 *         if (!more) break;
 *         SOP_TRY(sop_json_key(j, &key, &n));
 *         ... read or skip the value ...
 *     }
 *
 * Every function returns SOP_E_FORMAT with the document's name and the byte where it went wrong. */
#ifndef MODEL_JSON_H
#define MODEL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_json {
    const char *name; /* of the document, for errors */
    const char *text; /* [size]; borrowed, like name */
    size_t size, at;
    int depth;
    bool first; /* nothing was read yet in the innermost { or [ */
    char *buf;  /* the string that was read last */
    size_t cap;
} sop_json;

void sop_json_init(sop_json *j, const char *text, size_t size, const char *name);
void sop_json_finish(sop_json *j);

/* The character that the next value begins with, or 0 at the end. */
char sop_json_peek(sop_json *j);
/* Goes into an object ('{') or array ('['). */
sop_status sop_json_enter(sop_json *j, char open);
/* more: another member follows; otherwise the closing character was read. */
sop_status sop_json_next(sop_json *j, char close, bool *more);
/* A string, decoded and zero-terminated; valid until the next one is read. */
sop_status sop_json_string(sop_json *j, const char **s, size_t *n);
/* A string and the colon behind it. */
sop_status sop_json_key(sop_json *j, const char **s, size_t *n);
/* A number; *whole says that it was written as an integer and fits *i. -0 is no integer. */
sop_status sop_json_number(sop_json *j, bool *whole, int64_t *i, double *d);
/* true, false or null; *letter is its first. */
sop_status sop_json_word(sop_json *j, char *letter);
/* Any value, checked. */
sop_status sop_json_skip(sop_json *j);
/* Only space is left. */
sop_status sop_json_end(sop_json *j);

#ifdef __cplusplus
}
#endif

#endif
