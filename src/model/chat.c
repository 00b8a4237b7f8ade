/* model/chat.c: a conversation into ids, in the formats of ChatML, Llama 3, Gemma and Mistral. What
 * differs inside a family is read out of the file's own Jinja text by its literals; a text with
 * something else in it is refused. Control tokens are written by id, and all other text, the
 * template's and the contents', is encoded as plain text, as one piece between two control tokens:
 * so the ids are those of the rendered text, but no content can make a control token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/tokenizer.h"

/* ---- reading the template ---- */

static bool has(const char *text, const char *what)
{
    return strstr(text, what) != NULL;
}

/* What "<|im_start|>system\n" is followed by inside one literal, up to "<|im_end|>": the message
 * that stands there when the conversation has none. The newline may be a real one or \n. */
static sop_status chatml_system(sop_tokenizer *t, const char *text)
{
    static const char open[] = "<|im_start|>system", close[] = "<|im_end|>";
    for (const char *at = strstr(text, open); at; at = strstr(at + 1, open)) {
        const char *s = at + sizeof open - 1;
        if (*s == '\n') {
            s++;
        } else if (s[0] == '\\' && s[1] == 'n') {
            s += 2;
        } else {
            continue;
        }
        const char *end = strstr(s, close);
        const size_t n = end ? (size_t)(end - s) : 0;
        if (n == 0 || memchr(s, '\'', n) || memchr(s, '"', n) || memchr(s, '\\', n)) continue;
        return sop_tok_copy(&t->chat.system_text, s, n);
    }
    return SOP_OK;
}

/* The literal that holds what, without its quotes: "[INST] ". */
static void literal(const char *text, const char *what, char *to, size_t cap)
{
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) {
        const char *from = at, *end = at + strlen(what);
        while (from > text && from[-1] == ' ') from--;
        while (*end == ' ') end++;
        const size_t n = (size_t)(end - from);
        if (from == text || (from[-1] != '"' && from[-1] != '\'') || *end != from[-1] || n >= cap)
            continue;
        memcpy(to, from, n);
        to[n] = 0;
        return;
    }
}

static void read_mistral(sop_chat_format *f, const char *text)
{
    f->kind = SOP_CHAT_MISTRAL;
    literal(text, "[INST]", f->open, sizeof f->open);
    literal(text, "[/INST]", f->close, sizeof f->close);
    if (!*f->open || !*f->close) f->kind = SOP_CHAT_NONE;
    f->reply_space = has(text, "\" \" + message[") || has(text, "' ' + message[");
    f->reply_trim = has(text, "message[\"content\"]|trim + eos_token") ||
                    has(text, "message['content']|trim + eos_token") ||
                    has(text, "message['content'] | trim + eos_token");
    if (has(text, "[SYSTEM_PROMPT]")) {
        f->system = SOP_SYSTEM_PROMPT;
        f->system_needed = has(text, "default_system_message");
    } else if (!has(text, "system_message")) {
        f->system = SOP_SYSTEM_REFUSED;
    } else {
        f->system = has(text, "loop.last and system_message") ? SOP_SYSTEM_LAST : SOP_SYSTEM_FIRST;
    }
}

static sop_status read_template(sop_tokenizer *t, const char *text)
{
    sop_chat_format *f = &t->chat;
    f->bos = has(text, "bos_token");
    if (has(text, "<|im_start|>")) {
        const bool thoughts = has(text, "</think>");
        const bool qwen3 =
            has(text, "last_query_index") && has(text, "not loop.last and reasoning_content");
        /* Known is a reply that begins right behind its role. */
        if ((thoughts && !qwen3) || has(text, "strftime_now") || has(text, "trim") ||
            has(text, "assistant\\n<think>") || !has(text, "<|im_end|>"))
            return SOP_OK;
        f->kind = qwen3 ? SOP_CHAT_QWEN3 : SOP_CHAT_CHATML;
        return chatml_system(t, text);
    }
    if (has(text, "<|start_header_id|>") && has(text, "<|eot_id|>") && has(text, "trim")) {
        f->dates = has(text, "Cutting Knowledge Date: December 2023") && has(text, "Today Date: ");
        /* Without the dates it is Llama 3.0's, which knows nothing of tools. */
        if (f->dates || (!has(text, "tools") && !has(text, "functions"))) f->kind = SOP_CHAT_LLAMA3;
    } else if (has(text, "<start_of_turn>") && has(text, "trim")) {
        f->kind = SOP_CHAT_GEMMA;
        f->system = has(text, "System role not supported") ? SOP_SYSTEM_REFUSED : SOP_SYSTEM_FIRST;
    } else if (has(text, "[INST]") && !has(text, "<<SYS>>")) {
        read_mistral(f, text);
    }
    return SOP_OK;
}

sop_status sop_chat_choose(sop_tokenizer *t)
{
    if (t->chat_template) return read_template(t, t->chat_template);
    /* No template: a base model. Its control tokens still say how its family speaks. */
    t->chat.bos = t->add_bos;
    if (sop_tok_control(t, "<|im_start|>") >= 0) {
        t->chat.kind = SOP_CHAT_CHATML;
    } else if (sop_tok_control(t, "<|start_header_id|>") >= 0) {
        t->chat.kind = SOP_CHAT_LLAMA3;
    } else if (sop_tok_control(t, "<start_of_turn>") >= 0) {
        t->chat.kind = SOP_CHAT_GEMMA;
        t->chat.system = SOP_SYSTEM_FIRST;
    }
    return SOP_OK;
}

/* ---- writing ---- */

typedef struct writer {
    const sop_tokenizer *t;
    sop_encoder *e;
    sop_buf text; /* plain text since the last control token */
} writer;

static sop_status put(writer *w, const char *s)
{
    return sop_buf_add(&w->text, s, strlen(s));
}

/* What a control token ends. */
static sop_status flush(writer *w)
{
    const size_t n = w->text.n;
    w->text.n = 0;
    return sop_encoder_text(w->e, w->text.at, n, false, w->e->n_ids == 0);
}

static sop_status put_id(writer *w, int32_t id)
{
    SOP_TRY(flush(w));
    return sop_encoder_id(w->e, id);
}

/* A control token by its text; a vocabulary without it has the text as plain text. */
static sop_status control(writer *w, const char *text)
{
    const int32_t id = sop_tok_control(w->t, text);
    return id >= 0 ? put_id(w, id) : put(w, text);
}

/* What Python's str.strip() takes away. */
static bool is_space(uint32_t c)
{
    return (sop_unicode(c) & SOP_UNI_SPACE) || (c >= 0x1C && c <= 0x1F);
}

static sop_status put_trimmed(writer *w, const char *s)
{
    size_t n = strlen(s), k;
    sop_buf whole = {0};
    sop_status status = sop_utf8_repair(s, n, &whole);
    if (status == SOP_OK && whole.n) {
        size_t from = 0, end = whole.n;
        while (from < end && is_space(sop_utf8_read(whole.at + from, &k))) from += k;
        while (end > from) {
            size_t p = end;
            do p--;
            while (p > from && ((uint8_t)whole.at[p] & 0xC0) == 0x80);
            if (!is_space(sop_utf8_read(whole.at + p, &k))) break;
            end = p;
        }
        status = sop_buf_add(&w->text, whole.at + from, end - from);
    }
    sop_buf_finish(&whole);
    return status;
}

static bool is(const sop_chat_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

/* ---- ChatML: <|im_start|>role \n content <|im_end|> \n ---- */

static sop_status open_turn(writer *w, const char *role)
{
    SOP_TRY(control(w, "<|im_start|>"));
    SOP_TRY(put(w, role));
    return put(w, "\n");
}

static sop_status close_turn(writer *w)
{
    SOP_TRY(control(w, "<|im_end|>"));
    return put(w, "\n");
}

/* Qwen 3 keeps a reply's thoughts only behind the last question. */
static sop_status put_reply(writer *w, const char *content, bool after_question, bool last)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *answer = content, *thought = "";
    size_t n_thought = 0;
    const char *end = strstr(content, close);
    if (end) {
        const char *e = end;
        for (const char *p = end; p; p = strstr(p + 1, close)) answer = p + sizeof close - 1;
        while (*answer == '\n') answer++;
        while (e > content && e[-1] == '\n') e--;
        thought = content;
        for (const char *p = strstr(content, open); p && p + sizeof open - 1 <= e;
             p = strstr(p + 1, open))
            thought = p + sizeof open - 1;
        while (thought < e && *thought == '\n') thought++;
        n_thought = (size_t)(e - thought);
    }
    if (after_question && (last || n_thought)) {
        while (*answer == '\n') answer++;
        SOP_TRY(put(w, "<think>\n"));
        SOP_TRY(sop_buf_add(&w->text, thought, n_thought));
        SOP_TRY(put(w, "\n</think>\n\n"));
    }
    return put(w, answer);
}

static bool is_tool_result(const char *s)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    const size_t n = strlen(s), k = sizeof close - 1;
    return strncmp(s, open, sizeof open - 1) == 0 && n >= k && strcmp(s + n - k, close) == 0;
}

static sop_status write_chatml(writer *w, const sop_chat_message *m, size_t n, bool open_reply)
{
    const sop_chat_format *f = &w->t->chat;
    size_t question = n - 1; /* the last */
    for (size_t i = n; i-- > 0;)
        if (is(m + i, "user") && !is_tool_result(m[i].content)) {
            question = i;
            break;
        }
    if (f->system_text && !is(m, "system")) {
        SOP_TRY(open_turn(w, "system"));
        SOP_TRY(put(w, f->system_text));
        SOP_TRY(close_turn(w));
    }
    for (size_t i = 0; i < n; i++) {
        SOP_TRY(open_turn(w, m[i].role));
        if (f->kind == SOP_CHAT_QWEN3 && is(m + i, "assistant")) {
            SOP_TRY(put_reply(w, m[i].content, i > question, i + 1 == n));
        } else {
            SOP_TRY(put(w, m[i].content));
        }
        SOP_TRY(close_turn(w));
    }
    return open_reply ? open_turn(w, "assistant") : SOP_OK;
}

/* ---- Llama 3: <|start_header_id|>role<|end_header_id|> \n\n content <|eot_id|> ---- */

static sop_status header(writer *w, const char *role)
{
    SOP_TRY(control(w, "<|start_header_id|>"));
    SOP_TRY(put(w, role));
    SOP_TRY(control(w, "<|end_header_id|>"));
    return put(w, "\n\n");
}

static sop_status write_llama3(writer *w, const sop_chat_message *m, size_t n, bool open_reply)
{
    size_t i = 0;
    if (w->t->chat.dates) {
        SOP_TRY(header(w, "system"));
        SOP_TRY(put(w, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"));
        if (is(m, "system")) SOP_TRY(put_trimmed(w, m[i++].content));
        SOP_TRY(control(w, "<|eot_id|>"));
    }
    for (; i < n; i++) {
        SOP_TRY(header(w, m[i].role));
        SOP_TRY(put_trimmed(w, m[i].content));
        SOP_TRY(control(w, "<|eot_id|>"));
    }
    return open_reply ? header(w, "assistant") : SOP_OK;
}

/* ---- Gemma: <start_of_turn>role \n content <end_of_turn> \n ---- */

static sop_status write_gemma(writer *w, const sop_chat_message *m, size_t n, const char *system,
                              bool open_reply)
{
    for (size_t i = 0; i < n; i++) {
        SOP_TRY(control(w, "<start_of_turn>"));
        SOP_TRY(put(w, is(m + i, "assistant") ? "model\n" : "user\n"));
        if (i == 0 && system) {
            SOP_TRY(put(w, system));
            SOP_TRY(put(w, "\n\n"));
        }
        SOP_TRY(put_trimmed(w, m[i].content));
        SOP_TRY(control(w, "<end_of_turn>"));
        SOP_TRY(put(w, "\n"));
    }
    if (!open_reply) return SOP_OK;
    SOP_TRY(control(w, "<start_of_turn>"));
    return put(w, "model\n");
}

/* ---- Mistral: [INST] content [/INST] reply </s> ---- */

/* A literal of the template, in which one control token may stand: " [INST] ". */
static sop_status bracket(writer *w, const char *text)
{
    char name[16];
    const char *from = strchr(text, '['), *end = strchr(text, ']') + 1;
    SOP_TRY(sop_buf_add(&w->text, text, (size_t)(from - text)));
    snprintf(name, sizeof name, "%.*s", (int)(end - from), from);
    SOP_TRY(control(w, name));
    return put(w, end);
}

static sop_status write_mistral(writer *w, const sop_chat_message *m, size_t n, const char *system)
{
    const sop_chat_format *f = &w->t->chat;
    if (f->system == SOP_SYSTEM_PROMPT && system) {
        SOP_TRY(control(w, "[SYSTEM_PROMPT]"));
        SOP_TRY(put(w, system));
        SOP_TRY(control(w, "[/SYSTEM_PROMPT]"));
    }
    for (size_t i = 0; i < n; i++) {
        if (is(m + i, "assistant")) {
            if (f->reply_space) SOP_TRY(put(w, " "));
            SOP_TRY(f->reply_trim ? put_trimmed(w, m[i].content) : put(w, m[i].content));
            if (w->t->eos >= 0) SOP_TRY(put_id(w, w->t->eos));
            continue;
        }
        SOP_TRY(bracket(w, f->open));
        if (system && ((f->system == SOP_SYSTEM_LAST && i + 1 == n) ||
                       (f->system == SOP_SYSTEM_FIRST && i == 0))) {
            SOP_TRY(put(w, system));
            SOP_TRY(put(w, "\n\n"));
        }
        SOP_TRY(put(w, m[i].content));
        SOP_TRY(bracket(w, f->close));
    }
    return SOP_OK;
}

/* ---- */

static sop_status check(const sop_chat_format *f, const sop_chat_message *m, size_t n)
{
    const bool turns = f->kind == SOP_CHAT_GEMMA || f->kind == SOP_CHAT_MISTRAL;
    if (f->kind == SOP_CHAT_NONE)
        return sop_fail(SOP_E_UNSUPPORTED, "chat: the model's chat template is none of the known "
                                           "ones (ChatML, Llama 3, Gemma, Mistral)");
    for (size_t i = 0; i < n; i++) {
        if (!m[i].role || !m[i].content)
            return sop_fail(SOP_E_ARG, "chat: message %zu has no %s", i,
                            m[i].role ? "content" : "role");
        if (!is(m + i, "system") && !is(m + i, "user") && !is(m + i, "assistant"))
            return sop_fail(SOP_E_ARG,
                            "chat: message %zu has the role '%.32s', known are system, "
                            "user and assistant",
                            i, m[i].role);
        if (is(m + i, "system") && f->system == SOP_SYSTEM_REFUSED)
            return sop_fail(SOP_E_ARG, "chat: the model's template takes no system message");
    }
    const bool system = is(m, "system");
    if (f->system_needed && !system)
        return sop_fail(SOP_E_UNSUPPORTED, "chat: the model's template has a system message of its "
                                           "own that superop cannot write: give one");
    for (size_t i = system; turns && i < n; i++)
        if (is(m + i, "user") != ((i - system) % 2 == 0) || is(m + i, "system"))
            return sop_fail(SOP_E_ARG,
                            "chat: message %zu is of the %s, but user and assistant "
                            "must take turns",
                            i, m[i].role);
    return SOP_OK;
}

static sop_status write_all(writer *w, const sop_chat_message *m, size_t n, bool open_reply)
{
    const sop_chat_format *f = &w->t->chat;
    const char *system = is(m, "system") ? m->content : NULL;
    if (f->bos && w->t->bos >= 0) SOP_TRY(put_id(w, w->t->bos));
    switch (f->kind) {
    case SOP_CHAT_NONE: break;
    case SOP_CHAT_CHATML:
    case SOP_CHAT_QWEN3: SOP_TRY(write_chatml(w, m, n, open_reply)); break;
    case SOP_CHAT_LLAMA3: SOP_TRY(write_llama3(w, m, n, open_reply)); break;
    case SOP_CHAT_GEMMA:
        SOP_TRY(write_gemma(w, m + !!system, n - !!system, system, open_reply));
        break;
    case SOP_CHAT_MISTRAL: SOP_TRY(write_mistral(w, m + !!system, n - !!system, system)); break;
    }
    return flush(w);
}

sop_status sop_tokenizer_chat(const sop_tokenizer *t, const sop_chat_message *messages,
                              size_t n_messages, bool open_reply, int32_t *ids, size_t cap,
                              size_t *n)
{
    if (!t || !n || (!messages && n_messages) || (!ids && cap))
        return sop_fail(SOP_E_ARG, "chat: %s is NULL",
                        !t            ? "the tokenizer"
                        : !n          ? "n"
                        : !ids && cap ? "ids"
                                      : "messages");
    *n = 0;
    if (n_messages == 0) return sop_fail(SOP_E_ARG, "chat: no messages");
    SOP_TRY(check(&t->chat, messages, n_messages));
    writer w = {.t = t};
    SOP_TRY(sop_encoder_take(t, &w.e));
    const sop_status status = write_all(&w, messages, n_messages, open_reply);
    if (status == SOP_OK) {
        *n = w.e->n_ids;
        if (cap && *n) memcpy(ids, w.e->ids, (*n < cap ? *n : cap) * sizeof *ids);
    }
    sop_encoder_give(w.e);
    sop_buf_finish(&w.text);
    return status;
}
