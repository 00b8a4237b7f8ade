#include "model/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/test.h"

static void the_table_knows_letters_numbers_spaces_marks_and_punctuation(void)
{
    static const struct {
        uint32_t c, bits;
    } known[] = {
        {'a', SOP_UNI_LETTER},
        {'0', SOP_UNI_NUMBER | SOP_UNI_NUMERIC},
        {' ', SOP_UNI_SPACE},
        {'\r', SOP_UNI_SPACE},
        {'$', SOP_UNI_PUNCT}, /* a symbol, but an ASCII one */
        {'_', SOP_UNI_PUNCT},
        {0x1F, 0},
        {0x85, SOP_UNI_SPACE},
        {0xA0, SOP_UNI_SPACE},
        {0xB2, SOP_UNI_NUMBER | SOP_UNI_NUMERIC},
        {0x180E, 0}, /* no space since Unicode 6.3 */
        {0x200B, 0},
        {0x2028, SOP_UNI_SPACE},
        {0x20AC, 0},
        {0x301, SOP_UNI_MARK | SOP_UNI_NFC},
        {0x3000, SOP_UNI_SPACE},
        {0x4E00, SOP_UNI_LETTER},
        {0xFEFF, 0},
        {0x11DE0, SOP_UNI_NUMERIC}, /* a digit of Unicode 17 */
        {0x1C89, SOP_UNI_LETTER},   /* a letter of Unicode 16 */
        {0x1F600, 0},
        {0x10FFFF, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (sop_unicode(known[i].c) != known[i].bits) printf("U+%04X\n", known[i].c);
        CHECK(sop_unicode(known[i].c) == known[i].bits);
    }
}

/* Does bytes repair to text? */
static int repairs(const char *bytes, size_t n, const char *text)
{
    sop_buf out = {0};
    const int ok = sop_utf8_repair(bytes, n, &out) == SOP_OK && out.n == strlen(text) &&
                   memcmp(out.at, text, out.n) == 0;
    sop_buf_finish(&out);
    return ok;
}
#define REPAIRS(bytes, text) CHECK(repairs(bytes, sizeof bytes - 1, text))
#define BAD "\xEF\xBF\xBD"

static void broken_utf8_becomes_as_many_replacements_as_in_python(void)
{
    REPAIRS("plain", "plain");
    REPAIRS("\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80");
    REPAIRS("\xFF", BAD);
    REPAIRS("a\xC3", "a" BAD);
    REPAIRS("\xC3(", BAD "(");
    REPAIRS("\xE2\x82x", BAD "x"); /* a beginning is one */
    REPAIRS("\xF0\x9F\x98", BAD);  /* also at the end */
    REPAIRS("\xF0\x9F\x98\xFF", BAD BAD);
    REPAIRS("\xED\xA0\x80", BAD BAD BAD); /* half a surrogate pair */
    REPAIRS("\xC0\x80", BAD BAD);         /* overlong */
    REPAIRS("\xE0\x80\x80", BAD BAD BAD);
    REPAIRS("\xF4\x90\x80\x80", BAD BAD BAD BAD); /* over U+10FFFF */
    REPAIRS("12345678\x80"
            "12345678",
            "12345678" BAD "12345678");
}

/* Does the composed form of text equal want? */
static int composes(const char *text, const char *want)
{
    sop_buf scratch = {0}, out = {0};
    const size_t n = strlen(text);
    int ok = sop_nfc(text, n, &scratch, &out) == SOP_OK && out.n == strlen(want) &&
             memcmp(out.at, want, out.n) == 0;
    if (strcmp(text, want) != 0) ok = ok && sop_nfc_sure(text, n) < n;
    sop_buf_finish(&scratch);
    sop_buf_finish(&out);
    return ok;
}

static void composing_follows_unicode(void)
{
    CHECK(composes("plain ASCII, long enough", "plain ASCII, long enough"));
    CHECK(composes("caf\xC3\xA9", "caf\xC3\xA9"));
    CHECK(composes("cafe\xCC\x81!", "caf\xC3\xA9!"));
    CHECK(composes("12345678"
                   "e\xCC\x81",
                   "12345678"
                   "\xC3\xA9"));
    CHECK(composes("q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87")); /* sorted by class */
    CHECK(composes("\xE1\xBA\x9B\xCC\xA3", "\xE1\xBA\x9B\xCC\xA3"));
    CHECK(composes("\xE2\x84\xAB", "\xC3\x85"));                             /* Angstrom sign */
    CHECK(composes("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81")); /* Hangul */
    CHECK(composes("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"));             /* is not put back */
    CHECK(composes("\xCC\x81"
                   "a",
                   "\xCC\x81"
                   "a"));
}

static void text_without_marks_is_known_to_be_composed(void)
{
    const char *s = "Stra\xC3\x9F"
                    "e \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 12345678901234567890";
    CHECK(sop_nfc_sure(s, strlen(s)) == strlen(s));
    CHECK(sop_nfc_sure("abe\xCC\x81", 5) == 2); /* e may change */
}

static void a_long_run_of_marks_is_sorted_in_no_square_time(void)
{
    enum { PAIRS = 200000 };
    sop_buf text = {0}, scratch = {0}, out = {0};
    CHECK(sop_buf_add(&text, "q", 1) == SOP_OK);
    for (int i = 0; i < PAIRS; i++) CHECK(sop_buf_add(&text, "\xCC\x95\xCC\xA3", 4) == SOP_OK);
    const double begin = sop_now_s();
    CHECK(sop_nfc(text.at, text.n, &scratch, &out) == SOP_OK);
    CHECK(sop_now_s() - begin < 2);
    CHECK(out.n == text.n);
    int wrong = 0; /* U+0323 has class 220, U+0315 232 */
    for (size_t i = 0; out.n == text.n && i < PAIRS; i++)
        wrong += memcmp(out.at + 1 + 2 * i, "\xCC\xA3", 2) != 0 ||
                 memcmp(out.at + 1 + 2 * (PAIRS + i), "\xCC\x95", 2) != 0;
    CHECK(wrong == 0);
    sop_buf_finish(&text);
    sop_buf_finish(&scratch);
    sop_buf_finish(&out);
}

static void a_buffer_is_a_place_before_its_first_byte(void)
{
    sop_buf t = {0};
    CHECK(sop_buf_room(&t, 0) == SOP_OK && t.at); /* NULL + 0 is undefined */
    sop_buf_finish(&t);
    CHECK(sop_buf_add(&t, "", 0) == SOP_OK && t.at && t.n == 0);
    sop_buf_finish(&t);
}

int main(void)
{
    RUN(a_buffer_is_a_place_before_its_first_byte);
    RUN(the_table_knows_letters_numbers_spaces_marks_and_punctuation);
    RUN(broken_utf8_becomes_as_many_replacements_as_in_python);
    RUN(composing_follows_unicode);
    RUN(text_without_marks_is_known_to_be_composed);
    RUN(a_long_run_of_marks_is_sorted_in_no_square_time);
    return test_report();
}
