/* sop/tokenizer.h: text to token ids and back. */
#ifndef SOP_TOKENIZER_H
#define SOP_TOKENIZER_H

#include <stdbool.h>

#include "sop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_tokenizer sop_tokenizer;

/** Open the tokenizer of a GGUF file, of a folder with tokenizer.json, or of a tokenizer.json.
 *
 * out    the tokenizer; free it with sop_tokenizer_close(). NULL on failure. Safe for several
 *        threads at once: all other calls take it const
 *
 * SOP_E_IO, SOP_E_FORMAT (the sentence names the key), SOP_E_UNSUPPORTED for a tokenizer family
 * that superop does not know, SOP_E_NOMEM. */
SOP_API SOP_MUST_USE sop_status sop_tokenizer_open(const char *path, sop_tokenizer **out);
SOP_API void sop_tokenizer_close(sop_tokenizer *t);

/** Encode text [bytes] without BOS or EOS. What is broken UTF-8 is read as U+FFFD, as Python's
 * errors="replace" does. Bytes that the vocabulary has no token for are left out, or become its
 * unknown token where the model says so.
 *
 * special    true: the text of a special token becomes that token; false: it is plain text
 * ids        [cap] receives at most cap ids; may be NULL when cap is 0
 * n          how many ids the whole text has, also when that is more than cap
 *
 * SOP_E_ARG, SOP_E_NOMEM, SOP_E_LIMIT over 2^30 bytes or when the file's own regex gives up. */
SOP_API SOP_MUST_USE sop_status sop_tokenizer_encode(const sop_tokenizer *t, const char *text,
                                                     size_t bytes, bool special, int32_t *ids,
                                                     size_t cap, size_t *n);

/** The bytes of one token as it stands inside a text; not zero-terminated, and not always whole
 * UTF-8. bytes is 0 for ids outside the vocabulary and for control tokens unless special. */
SOP_API const char *sop_tokenizer_piece(const sop_tokenizer *t, int32_t id, bool special,
                                        size_t *bytes);

/** Turns ids into text as they come: what it gives is always whole UTF-8, at most 3 bytes are held
 * back, bytes that can never become UTF-8 come out as U+FFFD, and a SentencePiece text loses its
 * leading space only at the start. Plain memory: initialise with sop_detok_init. */
typedef struct sop_detok {
    const sop_tokenizer *tokenizer;
    char held[8];
    int32_t n_held;
    int32_t started;
    int32_t special; /* 1: control tokens are written too */
} sop_detok;

SOP_API void sop_detok_init(sop_detok *d, const sop_tokenizer *t, bool special);
/** out [cap] receives the new text, zero-terminated; n its length. Feed id -1 to flush what is held.
 * SOP_E_LIMIT when cap is too small; 4 x the longest piece + 8 always does (sop_detok_room). */
SOP_API SOP_MUST_USE sop_status sop_detok_push(sop_detok *d, int32_t id, char *out, size_t cap,
                                               size_t *n);
SOP_API size_t sop_detok_room(const sop_tokenizer *t);

typedef struct sop_tokenizer_facts {
    int32_t n_vocab;
    int32_t bos, eos, eot, unk, pad; /* -1 when there is none */
    bool add_bos;                    /* a raw prompt starts with bos */
    const char *family;              /* "bpe" or "spm" */
    const char *pre;                 /* the pre-tokenizer: "qwen2", "smollm", ... */
    const char *chat_template;       /* the file's own Jinja text, or NULL */
} sop_tokenizer_facts;

SOP_API void sop_tokenizer_facts_of(const sop_tokenizer *t, sop_tokenizer_facts *facts);
/** Does this id end a reply: eos, eot, or another end token of the family. */
SOP_API bool sop_tokenizer_is_end(const sop_tokenizer *t, int32_t id);
/** The id of a token's exact text, as sop_tokenizer_piece() gives it with special; -1 when there is
 * none. */
SOP_API int32_t sop_tokenizer_id(const sop_tokenizer *t, const char *text);

typedef struct sop_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} sop_chat_message;

/** Encode a conversation with the model's own template (ChatML, Llama 3, Gemma, Mistral). Only the
 * template's own text yields control tokens: the contents are encoded as plain text. Exactly one
 * BOS, where the family has one.
 *
 * open_reply   true: end with the start of the assistant's turn
 * ids          [cap] receives at most cap ids; n how many there are in all, as in encode
 *
 * What a template does without a system message is done here too: Qwen 2.5 and SmolLM2 put in their
 * own. Llama 3.1 to 3.3 name two dates, of which "today" is the template's fixed one, 26 Jul 2024. A
 * Mistral whose default message is computed wants one given (SOP_E_UNSUPPORTED without). A file
 * without a template (facts: NULL), a base model, speaks as its control tokens suggest.
 *
 * SOP_E_UNSUPPORTED when the template is none of the known ones; SOP_E_ARG for a role or an order
 * that the template refuses. */
SOP_API SOP_MUST_USE sop_status sop_tokenizer_chat(const sop_tokenizer *t,
                                                   const sop_chat_message *messages,
                                                   size_t n_messages, bool open_reply, int32_t *ids,
                                                   size_t cap, size_t *n);

#ifdef __cplusplus
}
#endif

#endif
