#include "base/sha256.h"

#include <string.h>

#include "base/test.h"

/* The answers are those of FIPS 180-4's examples and of coreutils' sha256sum. */
static const char *const one_million_a =
    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static int is(const char *text, const char *want)
{
    sop_sha256 h;
    char hex[65];
    sop_sha256_init(&h);
    sop_sha256_add(&h, text, strlen(text));
    sop_sha256_finish(&h, hex);
    return strcmp(hex, want) == 0;
}

static void known_texts_have_their_known_hashes(void)
{
    CHECK(is("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    CHECK(is("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK(is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
}

static void a_text_may_come_in_pieces_of_any_size(void)
{
    static char a[1000];
    memset(a, 'a', sizeof a);
    for (size_t piece = 1; piece < 200; piece += 13) {
        sop_sha256 h;
        char hex[65];
        sop_sha256_init(&h);
        for (size_t left = 1000000; left;) {
            const size_t n = left < piece ? left : piece;
            sop_sha256_add(&h, a, n);
            left -= n;
        }
        sop_sha256_finish(&h, hex);
        CHECK(strcmp(hex, one_million_a) == 0);
    }
}

/* 55 bytes are the last whose end fits their own block; the answers are sha256sum's. */
static void the_length_may_need_a_block_of_its_own(void)
{
    static const struct {
        size_t n;
        const char *want;
    } x[] = {
        {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
        {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
    };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        char text[66] = {0};
        memset(text, 'a', x[i].n);
        CHECK(is(text, x[i].want));
    }
}

int main(void)
{
    RUN(known_texts_have_their_known_hashes);
    RUN(a_text_may_come_in_pieces_of_any_size);
    RUN(the_length_may_need_a_block_of_its_own);
    return test_report();
}
