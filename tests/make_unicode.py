#!/usr/bin/env python3
"""Writes src/model/unicode_table.c: what the tokenizers must know of each code point.

    pip install unicodedata2==16.0.0
    python3 tests/make_unicode.py > src/model/unicode_table.c

Unicode 16.0 is what the regex engine inside Hugging Face tokenizers 0.23 knows, so these tables
split where it splits; Python's own unicodedata may be older. The "numeric" bit follows that
library's other classifier (Rust's char::is_numeric, Unicode 17): NUMERIC_17 adds what 16.0 lacks.
"""
import string
import unicodedata2 as ud

LETTER, NUMBER, SPACE, MARK, PUNCT, NUMERIC, NFC = (1 << i for i in range(7))
NUMERIC_17 = [(0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6)]
WHITE_SPACE = {9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}
SHIFT = 7


def composed_tails():
    """Code points that can be swallowed by one before them when a text is composed."""
    tails = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul vowels and finals
    for c in range(0x110000):
        parts = ud.decomposition(chr(c))
        if parts and not parts.startswith('<') and ' ' in parts:
            tails.add(int(parts.split()[1], 16))
    return tails


def main():
    tails = composed_tails()
    bits = bytearray(0x110000)
    for c in range(0x110000):
        ch, b = chr(c), 0
        major = ud.category(ch)[0]
        b |= LETTER * (major == 'L') | NUMBER * (major == 'N') | MARK * (major == 'M')
        b |= SPACE * (c in WHITE_SPACE)
        b |= PUNCT * (major == 'P' or ch in string.punctuation)
        b |= NUMERIC * (major == 'N' or any(lo <= c <= hi for lo, hi in NUMERIC_17))
        if not 0xD800 <= c < 0xE000:
            b |= NFC * (ud.combining(ch) != 0 or c in tails or ud.normalize('NFC', ch) != ch)
        bits[c] = b
    blocks, page = {}, []
    for at in range(0, 0x110000, 1 << SHIFT):
        page.append(blocks.setdefault(bytes(bits[at:at + (1 << SHIFT)]), len(blocks)))
    print('/* model/unicode_table.c: written by tests/make_unicode.py from Unicode %s. */'
          % ud.unidata_version)
    print('#include "model/unicode.h"\n\n/* clang-format off */')
    for name, kind, values in (('page', 'uint16_t', page),
                               ('bits', 'uint8_t', [x for b in blocks for x in b])):
        print('const %s sop_unicode_%s[%d] = {' % (kind, name, len(values)))
        line = ''
        for v in values:
            if len(line) + len(str(v)) + 1 > 100:
                print(line)
                line = ''
            line += '%d,' % v
        print(line + '};')
    print('/* clang-format on */')


main()
