/* sop/status.h: how a sop function says that it failed. */
#ifndef SOP_STATUS_H
#define SOP_STATUS_H

#define SOP_API __attribute__((visibility("default")))
#define SOP_MUST_USE __attribute__((warn_unused_result))

#ifdef __cplusplus
extern "C" {
#endif

/** One list makes the enum, its names and its texts. Values are part of the ABI: append only. */
#define SOP_STATUS_MAP(X) \
    X(OK, 0, "success") \
    X(E_ARG, 1, "an argument is wrong") \
    X(E_SHAPE, 2, "the shapes do not fit together") \
    X(E_UNSUPPORTED, 3, "no variant takes this shape, type and device") \
    X(E_NOMEM, 4, "out of memory") \
    X(E_DEVICE, 5, "the device reported an error") \
    X(E_IO, 6, "a file could not be read or written") \
    X(E_FORMAT, 7, "a file does not hold what it should") \
    X(E_LIMIT, 8, "a stated limit would be passed") \
    X(E_NUMERIC, 9, "a result is not finite") \
    X(E_NOT_FOUND, 10, "no such name") \
    X(E_INTERNAL, 11, "a fault of superop itself")

typedef enum sop_status {
#define X(name, value, text) SOP_##name = (value),
    SOP_STATUS_MAP(X)
#undef X
} sop_status;

/** The text of a status; never NULL. */
SOP_API const char *sop_status_text(sop_status s);

/** This thread's last failure in one sentence, with the numbers. Never NULL; valid until the
 * next sop call on this thread fails. */
SOP_API const char *sop_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
