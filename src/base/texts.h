/* base/texts.h: files that the build writes into the program, under their names (sop_texts in
 * cmake/Sop.cmake). An array of them ends with one that has no name. */
#ifndef BASE_TEXTS_H
#define BASE_TEXTS_H

typedef struct sop_text {
    const char *name, *text;
} sop_text;

#endif
