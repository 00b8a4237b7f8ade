/* superop run: answer a prompt, streaming, or hold a conversation. */
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/clock.h"
#include "cli.h"
#include "loaded.h"

static const char *o_prompt, *o_file;
static bool o_chat, o_raw, o_json;
static int64_t o_n = 512, o_top_k, o_seed = 1, o_logprobs;
static double o_temperature, o_top_p = 1, o_min_p;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* One reply. */
typedef struct reply {
    int32_t *ids; /* [cap]: with the token that ended it */
    int64_t n, cap, prompt_n;
    double prompt_s, output_s;
    const char *stop_reason;
    char *text; /* what was streamed */
    size_t text_bytes;
    json_t *logprobs;
} reply;

static void reply_finish(reply *r)
{
    free(r->ids);
    free(r->text);
    json_decref(r->logprobs);
}

/* --- one step's most likely tokens --- */

/* The k largest of logits [n], largest first, as [{id, logprob, text}]. */
static json_t *top_of(const sop_tokenizer *t, const float *logits, int64_t n, int64_t k)
{
    json_t *list = json_array();
    double most = -INFINITY, sum = 0, before = INFINITY;
    int64_t before_at = -1;
    for (int64_t i = 0; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    for (int64_t rank = 0; rank < k && rank < n; rank++) {
        int64_t best = -1; /* the largest that comes after the last one; equals in index order */
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)logits[i];
            if (v > before || (v == before && i <= before_at)) continue;
            if (best < 0 || v > (double)logits[best]) best = i;
        }
        if (best < 0) break;
        before = (double)logits[best], before_at = best;
        size_t bytes = 0;
        const char *piece = sop_tokenizer_piece(t, (int32_t)best, true, &bytes);
        json_t *text = piece ? json_stringn(piece, bytes) : NULL;
        json_t *one = json_object();
        json_object_set_new(one, "id", json_integer(best));
        json_object_set_new(one, "logprob", json_real(before - most - log(sum)));
        json_object_set_new(one, "text", text ? text : json_null());
        json_array_append_new(list, one);
    }
    return list;
}

/* --- generation --- */

static int stream(reply *r, sop_detok *d, int32_t id, char *piece, size_t room)
{
    size_t bytes = 0;
    const sop_status s = sop_detok_push(d, id, piece, room, &bytes);
    if (s != SOP_OK) return cli_status(s);
    char *grown = realloc(r->text, r->text_bytes + bytes + 1);
    if (!grown) return cli_fail(CLI_FAILED, "out of memory for %zu bytes", bytes);
    r->text = grown;
    memcpy(r->text + r->text_bytes, piece, bytes);
    r->text_bytes += bytes;
    r->text[r->text_bytes] = 0;
    if (o_json || !bytes) return CLI_OK;
    (void)fwrite(piece, 1, bytes, stdout);
    (void)fflush(stdout);
    return CLI_OK;
}

/* Runs ids through the model, in steps as large as it takes; *next is what follows the last. */
static int feed(loaded *m, const int32_t *ids, int64_t n, uint64_t counter, int32_t *next,
                float *logits)
{
    cli_progress progress;
    cli_progress_start(&progress, "prompt");
    for (int64_t at = 0; at < n && !interrupted;) {
        const int64_t most = m->facts.max_tokens, left = n - at;
        const sop_step_item item = {
            .seq = m->seq,
            .n_ids = (int32_t)(left < most ? left : most),
            .ids = ids + at,
            .want = left <= most ? SOP_WANT_LAST : SOP_WANT_NONE,
            .sampling = {(float)o_temperature, fmaxf((float)o_top_p, FLT_MIN), (float)o_min_p,
                         (int32_t)o_top_k, (uint64_t)o_seed, counter},
        };
        const sop_status s = sop_super_step(m->super, &item, 1, next, logits);
        if (s != SOP_OK) {
            cli_progress_end(&progress);
            return cli_status(s);
        }
        at += item.n_ids;
        if (n > 1) cli_progress_count(&progress, at, n, "tokens");
    }
    cli_progress_end(&progress);
    return CLI_OK;
}

/* Continues a sequence by ids [n_ids] and the reply to them. */
static int generate(loaded *m, const int32_t *ids, int64_t n_ids, reply *r)
{
    const int64_t left = m->facts.ctx - sop_super_length(m->super, m->seq);
    const size_t room = sop_detok_room(m->tokenizer);
    float *logits = o_logprobs ? malloc((size_t)m->facts.vocab * sizeof *logits) : NULL;
    char *piece = malloc(room);
    sop_detok d;
    int32_t next = -1;
    int code = CLI_OK;
    sop_detok_init(&d, m->tokenizer, false);
    *r = (reply){.stop_reason = "length", .prompt_n = n_ids, .cap = o_n};
    if (left - n_ids + 1 < o_n) { /* the last token of a reply is not fed */
        r->cap = left - n_ids + 1;
        r->stop_reason = "context";
    }
    r->ids = malloc((size_t)(r->cap + 1) * sizeof *r->ids);
    r->logprobs = o_logprobs ? json_array() : NULL;
    if (!r->ids || !piece || (o_logprobs && !logits))
        code = cli_fail(CLI_FAILED, "out of memory for %lld tokens", (long long)r->cap);
    const double start = sop_now_s();
    if (!code) code = feed(m, ids, n_ids, 0, &next, logits);
    double now = sop_now_s();
    r->prompt_s = now - start;
    while (!code && !interrupted && r->n < r->cap) {
        r->ids[r->n++] = next;
        if (logits)
            json_array_append_new(r->logprobs,
                                  top_of(m->tokenizer, logits, m->facts.vocab, o_logprobs));
        if (sop_tokenizer_is_end(m->tokenizer, next)) {
            r->stop_reason = "end";
            break;
        }
        code = stream(r, &d, next, piece, room);
        if (!code && r->n < r->cap) code = feed(m, &next, 1, (uint64_t)r->n, &next, logits);
    }
    if (interrupted) r->stop_reason = "interrupted";
    if (!code) code = stream(r, &d, -1, piece, room);
    r->output_s = sop_now_s() - now;
    free(piece);
    free(logits);
    return code;
}

/* --- the prompt --- */

static int check_text(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                    (utf8proc_ssize_t)(bytes - at), &c);
        if (n <= 0)
            return cli_fail(CLI_USAGE, "the prompt is not UTF-8: byte 0x%02x at %zu of %zu",
                            (unsigned char)text[at], at, bytes);
        at += (size_t)n;
    }
    return bytes ? CLI_OK : cli_fail(CLI_USAGE, "the prompt is empty");
}

/* The ids of a conversation, with the start of the reply. */
static int encode_chat(const loaded *m, const sop_chat_message *messages, size_t n_messages,
                       int32_t **ids, size_t *n)
{
    *ids = NULL;
    sop_status s = sop_tokenizer_chat(m->tokenizer, messages, n_messages, true, NULL, 0, n);
    if (s == SOP_OK) {
        *ids = malloc((*n + 1) * sizeof **ids);
        if (!*ids) return cli_fail(CLI_FAILED, "out of memory for %zu tokens", *n);
        s = sop_tokenizer_chat(m->tokenizer, messages, n_messages, true, *ids, *n, n);
    }
    if (s == SOP_OK) return CLI_OK;
    free(*ids);
    *ids = NULL;
    return cli_status(s);
}

static int encode_raw(const loaded *m, const char *text, size_t bytes, int32_t **ids, size_t *n)
{
    sop_tokenizer_facts facts;
    sop_tokenizer_facts_of(m->tokenizer, &facts);
    const int code = cli_encode(m->tokenizer, text, bytes, false, ids, n);
    if (code || !facts.add_bos || facts.bos < 0) return code;
    memmove(*ids + 1, *ids, *n * sizeof **ids); /* cli_encode leaves room for one */
    (*ids)[0] = facts.bos;
    ++*n;
    return CLI_OK;
}

/* --- what is printed --- */

/* The share of the measured bandwidth that reading the weights once for each token comes to. */
static double share(const loaded *m, const reply *r)
{
    if (r->n < 2 || r->output_s <= 0 || m->read_bytes_s <= 0) return 0;
    return (double)m->model_facts.step_read_bytes * (double)(r->n - 1) / r->output_s /
           m->read_bytes_s;
}

/* The first token of a reply comes with the prompt, so n - 1 steps took output_s. */
static double output_rate(const reply *r)
{
    return r->n > 1 && r->output_s > 0 ? (double)(r->n - 1) / r->output_s : 0;
}

static double prompt_rate(const reply *r)
{
    return r->prompt_s > 0 ? (double)r->prompt_n / r->prompt_s : 0;
}

static void print_timings(loaded *m, const reply *r)
{
    (void)fflush(stdout);
    loaded_measure(m);
    fprintf(stderr, "prompt %lld tokens, %.1f tok/s; generation %lld tokens, %.1f tok/s",
            (long long)r->prompt_n, prompt_rate(r), (long long)r->n, output_rate(r));
    if (share(m, r) > 0)
        fprintf(stderr, ", %.0f %% of this machine's %.1f GB/s", 100 * share(m, r),
                m->read_bytes_s / 1e9);
    fputc('\n', stderr);
}

static void print_reply_json(const loaded *m, const int32_t *ids, size_t n, const reply *r)
{
    json_t *o = json_object(), *t = json_object();
    json_object_set_new(o, "prompt_ids", cli_json_ids(ids, n));
    json_object_set_new(o, "output_ids", cli_json_ids(r->ids, (size_t)r->n));
    json_object_set_new(o, "text", json_stringn(r->text ? r->text : "", r->text_bytes));
    json_object_set_new(o, "stop_reason", json_string(r->stop_reason));
    json_object_set_new(t, "open_s", json_real(m->open_s));
    json_object_set_new(t, "prompt_s", json_real(r->prompt_s));
    json_object_set_new(t, "prompt_tokens_s", json_real(prompt_rate(r)));
    json_object_set_new(t, "output_s", json_real(r->output_s));
    json_object_set_new(t, "output_tokens_s", json_real(output_rate(r)));
    json_object_set_new(t, "read_bytes_s", json_real(m->read_bytes_s));
    json_object_set_new(t, "read_share", json_real(share(m, r)));
    json_object_set_new(o, "timings", t);
    if (r->logprobs) json_object_set(o, "logprobs", r->logprobs);
    cli_print_json(o);
}

/* --- one prompt --- */

static int answer(loaded *m, const char *text, size_t bytes)
{
    sop_tokenizer_facts facts;
    int32_t *ids = NULL;
    size_t n = 0;
    reply r = {0};
    sop_tokenizer_facts_of(m->tokenizer, &facts);
    const sop_chat_message message = {"user", text};
    int code = o_raw || !facts.chat_template ? encode_raw(m, text, bytes, &ids, &n)
                                             : encode_chat(m, &message, 1, &ids, &n);
    if (!code && (int64_t)n >= m->facts.ctx)
        code = cli_fail(CLI_USAGE,
                        "the prompt has %zu tokens, and the context of %lld has no room "
                        "for a reply (--ctx)",
                        n, (long long)m->facts.ctx);
    if (!code) code = generate(m, ids, (int64_t)n, &r);
    if (!code && o_json) {
        print_reply_json(m, ids, n, &r);
    } else if (!code) {
        putchar('\n');
        print_timings(m, &r);
    }
    free(ids);
    reply_finish(&r);
    return code;
}

/* --- a conversation --- */

typedef struct talk {
    sop_chat_message *messages; /* contents are ours */
    size_t n;
    int32_t *held; /* the ids that the sequence holds */
    int64_t n_held;
} talk;

static int talk_add(talk *t, const char *role, char *content)
{
    sop_chat_message *grown = realloc(t->messages, (t->n + 1) * sizeof *grown);
    if (!grown || !content) {
        if (grown) t->messages = grown;
        free(content);
        return cli_fail(CLI_FAILED, "out of memory for %zu messages", t->n + 1);
    }
    t->messages = grown;
    t->messages[t->n++] = (sop_chat_message){role, content};
    return CLI_OK;
}

/* One turn: the whole conversation is encoded anew, and what the sequence holds of it is kept. */
static int turn(loaded *m, talk *t)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int64_t same = 0;
    reply r = {0};
    int code = encode_chat(m, t->messages, t->n, &ids, &n);
    if (code) return code;
    while (same < t->n_held && same + 1 < (int64_t)n && t->held[same] == ids[same]) same++;
    if ((int64_t)n >= m->facts.ctx)
        code = cli_fail(CLI_USAGE, "the conversation has %zu tokens, the context %lld (--ctx)", n,
                        (long long)m->facts.ctx);
    sop_status s = code ? SOP_OK : sop_super_truncate(m->super, m->seq, same);
    if (s != SOP_OK) { /* a window has dropped what is needed: from the beginning */
        same = 0;
        s = sop_super_truncate(m->super, m->seq, 0);
    }
    if (s != SOP_OK) code = cli_status(s);
    if (!code) code = generate(m, ids + same, (int64_t)n - same, &r);
    if (!code) {
        /* The sequence holds all that was fed: the prompt, and the reply but its last token. */
        t->n_held = sop_super_length(m->super, m->seq);
        int32_t *grown = realloc(t->held, (size_t)(t->n_held + 1) * sizeof *grown);
        if (!grown)
            code = cli_fail(CLI_FAILED, "out of memory for %lld tokens", (long long)n);
        else
            t->held = grown;
        for (int64_t i = 0; i < t->n_held && !code; i++)
            /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): as many as were fed */
            t->held[i] = i < (int64_t)n ? ids[i] : r.ids[i - (int64_t)n];
    }
    if (!code) {
        putchar('\n');
        print_timings(m, &r);
        code = talk_add(t, "assistant", strdup(r.text ? r.text : ""));
    }
    free(ids);
    reply_finish(&r);
    return code;
}

static int chat(loaded *m, const char *first, size_t first_bytes)
{
    const bool person = isatty(STDIN_FILENO);
    talk t = {0};
    char *line = NULL;
    size_t cap = 0;
    int code = CLI_OK;
    if (person) fputs("Ctrl-C ends a reply, Ctrl-D the conversation.\n", stderr);
    for (;;) {
        ssize_t n = (ssize_t)first_bytes;
        if (!first) {
            if (person) fputs("> ", stderr);
            n = getline(&line, &cap, stdin);
            if (n < 0) break;
            while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
            if (n == 0) continue;
        }
        code = check_text(first ? first : line, (size_t)n);
        if (!code) code = talk_add(&t, "user", strdup(first ? first : line));
        if (!code) code = turn(m, &t);
        if (code) break;
        first = NULL;
        interrupted = 0;
    }
    if (person) fputc('\n', stderr);
    for (size_t i = 0; i < t.n; i++) { /* a message is read alone, but it is ours */
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        free((char *)(uintptr_t)t.messages[i].content);
    }
    free(t.messages);
    free(t.held);
    free(line);
    return code;
}

/* --- the verb --- */

static int run_run(int n, char **args)
{
    char *text = NULL;
    size_t bytes = o_prompt ? strlen(o_prompt) : 0;
    loaded m;
    (void)n, (void)args;
    if (o_prompt && o_file) return cli_fail(CLI_USAGE, "-p and -f: give one of them");
    if (!o_prompt && !o_file && !o_chat) return cli_fail(CLI_USAGE, "give -p, -f or --chat");
    if (o_chat && (o_raw || o_json))
        return cli_fail(CLI_USAGE, "--chat goes without --raw, --json");
    if (o_logprobs && !o_json) return cli_fail(CLI_USAGE, "--logprobs goes with --json");
    int code = o_file ? cli_read_file(o_file, &text, &bytes) : CLI_OK;
    const char *prompt = o_file ? text : o_prompt;
    if (!code && prompt) code = check_text(prompt, bytes);
    if (!code) code = loaded_open(&m, &(sop_limits){0});
    if (!code) {
        const struct sigaction ask = {.sa_handler = on_interrupt};
        (void)sigaction(SIGINT, &ask, NULL);
        if (!m.tokenizer)
            code = cli_fail(CLI_USAGE,
                            "%s is a model of random numbers and has no words: bench and "
                            "explain take it",
                            loaded_model);
        else
            code = o_chat ? chat(&m, prompt, bytes) : answer(&m, prompt, bytes);
        if (!code && interrupted) code = CLI_INTERRUPTED;
        loaded_close(&m);
    }
    free(text);
    return code;
}

static const cli_option options[] = {
    LOADED_OPTIONS(true),
    {"prompt", 'p', CLI_TEXT, &o_prompt, "TEXT", .help = "what to answer"},
    {"file", 'f', CLI_TEXT, &o_file, "FILE", .help = "read the prompt from a file; - is stdin"},
    {"chat", 0, CLI_FLAG, &o_chat, NULL, .help = "hold a conversation, a line a turn"},
    {"raw", 0, CLI_FLAG, &o_raw, NULL, .help = "no chat template; the model's BOS all the same"},
    {"tokens", 'n', CLI_INT, &o_n, "N", .help = "tokens of a reply at most (512)", .hi = 1e9},
    {"temperature", 0, CLI_REAL, &o_temperature, "T", .help = "0 takes the likeliest token (0)",
     .hi = 100},
    {"top-k", 0, CLI_INT, &o_top_k, "K", .help = "among the K likeliest; 0: all (0)", .hi = 1e9},
    {"top-p", 0, CLI_REAL, &o_top_p, "P", .help = "among those with this mass; 1: all (1)",
     .hi = 1},
    {"min-p", 0, CLI_REAL, &o_min_p, "P", .help = "at least P times as likely as the best (0)",
     .hi = 1},
    {"seed", 0, CLI_INT, &o_seed, "S", .help = "the same seed draws the same tokens (1)",
     .hi = 9e15},
    {"json", 0, CLI_FLAG, &o_json, NULL, .help = "one object at the end instead of the text"},
    {"logprobs", 0, CLI_INT, &o_logprobs, "K", .help = "with --json: the K likeliest of each step",
     0, 1000},
};

const cli_verb verb_run = {
    .name = "run",
    .brief = "answer a prompt, or hold a conversation",
    .args = "",
    .options = options,
    .n_options = CLI_N(options),
    .examples = "  superop run -m smollm2-135m -p 'Why is the sky blue?'\n"
                "  superop run -m smollm2-135m --chat --temperature 0.7 --top-p 0.9\n"
                "  superop run -m gemma3-270m --raw -p 'The capital of France is' -n 16\n"
                "  superop run -m smollm2-135m -f letter.txt --json --logprobs 5\n",
    .more =
        "The reply goes to standard output, all else to standard error. output_ids of --json hold\n"
        "the token that ended the reply, too; stop_reason is end, length, context or\n"
        "interrupted.\n",
    .run = run_run,
};
