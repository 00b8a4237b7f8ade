#include "model/json.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

static sop_status skips_n(const char *text, size_t n)
{
    /* a block of just this size, so that a sanitizer sees a read behind it */
    char *copy = malloc(n ? n : 1);
    sop_json j;
    if (!copy) abort();
    memcpy(copy, text, n);
    sop_json_init(&j, copy, n, "test.json");
    sop_status s = sop_json_skip(&j);
    if (s == SOP_OK) s = sop_json_end(&j);
    sop_json_finish(&j);
    free(copy);
    return s;
}

static int is_json(const char *text)
{
    const sop_status s = skips_n(text, strlen(text));
    return s == SOP_OK ? 1 : s == SOP_E_FORMAT ? 0 : -1;
}

static int string_is(const char *text, const char *want)
{
    sop_json j;
    const char *s = "";
    size_t n = 0;
    sop_json_init(&j, text, strlen(text), "test.json");
    const int same = sop_json_string(&j, &s, &n) == SOP_OK && sop_json_end(&j) == SOP_OK &&
                     n == strlen(want) && strcmp(s, want) == 0;
    sop_json_finish(&j);
    return same;
}

/* 'i' and the integer, 'd' and the double, or 0 for no number. */
static char number(const char *text, int64_t *i, double *d)
{
    sop_json j;
    bool whole = false;
    sop_json_init(&j, text, strlen(text), "test.json");
    if (sop_json_number(&j, &whole, i, d) != SOP_OK || sop_json_end(&j) != SOP_OK) return 0;
    return whole ? 'i' : 'd';
}

static void valid_texts_are_read(void)
{
    const char *const good[] = {"{}",           " [ ] ",
                                "null",         "true",
                                "false",        "0",
                                "\"\"",         "{\"a\":{\"b\":[1,2,{\"c\":null}]},\"d\":\"e\"}",
                                "\t[1 ,\r\n2]", "[[[[[[[[]]]]]]]]"};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) CHECK(is_json(good[k]) == 1);
}

static void broken_texts_are_refused(void)
{
    const char *const bad[] = {
        "",       "{",     "}",           "[",       "]",        "{]",         "[}",
        "[1,]",   "[,1]",  "[1 2]",       "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}",
        "{1:2}",  "{a:1}", "nul",         "nulll",   "True",     "NaN",        "Infinity",
        "[1]]",   "{}{}",  "\"",          "\"a",     "\"\\\"",   "\"\\x\"",    "\"\\u12\"",
        "\"\n\"", "'a'",   "\"\\u000g\"", "// a",    "[1]//",    "\"\\",       "[1;2]"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) CHECK(is_json(bad[k]) == 0);
    CHECK(skips_n("[1]\0", 4) == SOP_E_FORMAT);
    CHECK(skips_n("\0", 1) == SOP_E_FORMAT);
}

static void an_error_names_the_document_and_the_byte(void)
{
    CHECK(!is_json("[1 2]"));
    CHECK(strcmp(sop_last_error(), "test.json: JSON byte 3 (0x32): expected ',' or ']'") == 0);
    CHECK(!is_json("[1"));
    CHECK(strcmp(sop_last_error(), "test.json: the JSON ends at byte 2, expected ',' or ']'") == 0);
}

static void nesting_has_a_limit(void)
{
    char text[200000];
    memset(text, '[', sizeof text);
    CHECK(skips_n(text, sizeof text) == SOP_E_FORMAT);
    CHECK(strstr(sop_last_error(), "nested more than 32 deep") != NULL);
    memset(text + 32, ']', 32);
    CHECK(skips_n(text, 64) == SOP_OK);
}

static void strings_are_decoded(void)
{
    CHECK(string_is("\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "a\"\\/\b\f\n\r\tz"));
    CHECK(string_is("\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"",
                    "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
    CHECK(string_is(" \"\xe2\x82\xac\" ", "\xe2\x82\xac"));
}

static void escapes_that_are_no_characters_are_refused(void)
{
    const char *const bad[] = {"\\ud83d",        "\\ud83dx",        "\\ud83d\\u0041",
                               "\\ud83d\\ud83d", "\\ud83d\\n12345", "\\ude00",
                               "\\u0000",        "a\\u0000b",       "\\ud83d\\u"};
    char text[32];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        (void)snprintf(text, sizeof text, "\"%s\"", bad[k]);
        CHECK(is_json(text) == 0);
    }
    CHECK(skips_n("\"\\ud83d\\", 8) == SOP_E_FORMAT);
    /* the closing quote makes the string long enough to be looked at, not the pair */
    CHECK(skips_n("\"\\ud83d\"", 8) == SOP_E_FORMAT);
}

static void broken_utf8_is_refused(void)
{
    const char *const bad[] = {"\x80",         "\xc3", "\xc0\x80",         "\xe2\x82",
                               "\xed\xa0\x80", "\xff", "\xf4\x90\x80\x80", "\xc3\\n"};
    char text[16];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        (void)snprintf(text, sizeof text, "\"%s\"", bad[k]);
        CHECK(is_json(text) == 0);
    }
}

static void numbers_are_integers_only_when_written_so(void)
{
    int64_t i = 0;
    double d = 0;
    CHECK(number("0", &i, &d) == 'i' && i == 0 && d == 0);
    CHECK(number("-17", &i, &d) == 'i' && i == -17 && d == -17);
    CHECK(number("9223372036854775807", &i, &d) == 'i' && i == INT64_MAX);
    CHECK(number("-9223372036854775808", &i, &d) == 'i' && i == INT64_MIN);
    CHECK(number("9223372036854775808", &i, &d) == 'd' && d == 0x1p63);
    CHECK(number("1.5", &i, &d) == 'd' && d == 1.5);
    CHECK(number("1e-06", &i, &d) == 'd' && d == 1e-6);
    CHECK(number("1E3", &i, &d) == 'd' && d == 1000);
    CHECK(number("-0", &i, &d) == 'd' && d == 0);
    CHECK(number("1000000.0", &i, &d) == 'd' && d == 1e6);
    const char *const bad[] = {"-",   "01",  "+1",  "1.",  ".5", "1e",
                               "1e+", "0x1", "--1", "-01", "1_0"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) CHECK(number(bad[k], &i, &d) == 0);
    char digits[200];
    memset(digits, '1', sizeof digits);
    digits[129] = 0;
    CHECK(number(digits, &i, &d) == 0 && number(digits + 1, &i, &d) == 'd' && d > 1e127);
}

static void the_locale_changes_no_number(void)
{
    int64_t i;
    double d = 0;
    CHECK(number("1.5", &i, &d) == 'd' && d == 1.5);
}

int main(void)
{
    RUN(valid_texts_are_read);
    RUN(broken_texts_are_refused);
    RUN(an_error_names_the_document_and_the_byte);
    RUN(nesting_has_a_limit);
    RUN(strings_are_decoded);
    RUN(escapes_that_are_no_characters_are_refused);
    RUN(broken_utf8_is_refused);
    RUN(numbers_are_integers_only_when_written_so);
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
        RUN(the_locale_changes_no_number);
    } else {
        SKIP("the_locale_changes_no_number", "there is no locale de_DE.UTF-8");
    }
    return test_report();
}
