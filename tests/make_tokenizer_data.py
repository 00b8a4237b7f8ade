#!/usr/bin/env python3
"""Writes tests/data/tokenizer/NAME.jsonl: hard strings and the ids that the reference gives them.

    pip install tokenizers gguf
    python3 tests/make_tokenizer_data.py smollm2-135m.gguf tests/data/tokenizer/smollm2-135m.jsonl

The reference is Hugging Face tokenizers (0.23). It is built from the vocabulary, merges and scores
in the GGUF file with the official chain of the family, which such a file only names: smollm digits
one by one and then GPT-2's regex; qwen2 NFC and its own regex; gemma spaces to U+2581, and merges
made of the scores as transformers' converter makes them.

A line: text, or hex where it holds a zero or is not whole UTF-8 (which the reference reads with
errors="replace"); plain: the ids with special tokens read as text; special: with them parsed.
"""
import json
import random
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def reference(path):
    fields = GGUFReader(path).fields
    get = lambda key: fields['tokenizer.ggml.' + key].contents() if 'tokenizer.ggml.' + key in fields else None
    tokens, types = get('tokens'), get('token_type')
    vocab = {t: i for i, t in enumerate(tokens)}
    added = [AddedToken(t, special=k in (UNKNOWN, CONTROL), normalized=False)
             for t, k in zip(tokens, types) if k in (UNKNOWN, CONTROL, USER)]
    if get('model') == 'gpt2':
        merges = [tuple(m.split(' ')) for m in get('merges')]
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=get('pre') == 'smollm')
        if get('pre') == 'smollm':
            first = pre_tokenizers.Digits(individual_digits=True)
        else:
            assert get('pre') == 'qwen2'
            t.normalizer = normalizers.NFC()
            first = pre_tokenizers.Split(Regex(QWEN2), 'isolated')
        t.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
        t.decoder = decoders.ByteLevel()
    else:
        assert get('model') == 'llama' and not get('add_space_prefix')
        scores = get('scores')
        merges = []
        for word, i in vocab.items():
            if types[i] == NORMAL:
                for k in range(1, len(word)):
                    left, right = vocab.get(word[:k]), vocab.get(word[k:])
                    if left is not None and right is not None:
                        merges.append((-scores[i], left, right, word[:k], word[k:]))
        merges.sort()
        t = Tokenizer(models.BPE(vocab=vocab, merges=[m[3:] for m in merges], byte_fallback=True,
                                 fuse_unk=True, unk_token=tokens[get('unknown_token_id')]))
        t.normalizer = normalizers.Replace(' ', '\u2581')
        t.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.ByteFallback(),
                                       decoders.Fuse()])
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
        assert t.token_to_id(token.content) == vocab[token.content]
    return t


def hard_strings():
    s = ['', ' ', '  ', '   ', '\n', '\n\n', '\r\n', '\r\n\r\n', '\t', '\t\t\t', ' \n ', '\n \n',
         ' ' * 7, ' ' * 31, ' ' * 32, ' ' * 33, ' ' * 100, '\n' * 40, '\t' * 33, 'a' + ' ' * 100 + 'b',
         'Hello, world!', ' Hello', 'Hello ', '  Hello  world  ', 'hello\nworld', 'hello \n world',
         'a\r\nb\r\nc', 'a\rb', 'tab\tseparated\tvalues', 'x  y   z    w', 'end.\n', 'end. \n\n  next',
         "I'm you're he's she'll we've they'd don't", "I'M YOU'RE HE'S SHE'LL WE'VE THEY'D DON'T",
         "'s 't 're 've 'm 'll 'd", "'S'T'RE'VE'M'LL'D", "it\u2019s don\u2019t", "'\u017f '\u017fx",
         "''s", "'''", "o'clock rock'n'roll", "'tis 'twas", "'lL 'Ll 'vE 'rE", "d'accord l'eau",
         '0', '1234567890', '12345', '3.14159', '1,234,567.89', '1e10', '0x1F', '2024-02-29T23:59:59Z',
         'v1.2.3', 'x2y3z', '\u0661\u0662\u0663', '\u0967\u0968\u0969', '\u2460\u2461 \u00bd \u00b2\u00b3',
         '\u216b \u2167', '\uff11\uff12\uff13', '\U0001d7d8\U0001d7d9', '1 2 3', '1  22   333',
         'The quick brown fox jumps over the lazy dog.', 'ALL CAPS AND MiXeD cAsE',
         'supercalifragilisticexpialidocious antidisestablishmentarianism', 'a' * 100, 'ab' * 60,
         'Straße Größe äöüß ÄÖÜẞ', 'Zażółć gęślą jaźń', 'naïve café résumé', 'œuvre Æsir ﬁnance ﬂow',
         'Привет, мир! Как дела?', 'Γειά σου Κόσμε', 'שלום עולם', 'مرحبا بالعالم', 'नमस्ते दुनिया',
         'สวัสดีชาวโลก', '안녕하세요 세계', 'こんにちは世界', '你好，世界！今天天气怎么样？', '繁體中文測試',
         '日本語とEnglishの混在 text', 'ქართული ენა', 'Հայերեն', 'አማርኛ', 'ខ្មែរ', 'မြန်မာ', 'ᏣᎳᎩ',
         'Việt Nam đẹp', 'Tiếng Việt', 'ﷺ', '\U00020000\U00020001 rare', '\U00010348\U00010349 gothic',
         'def f(x):\n    return x ** 2  # square\n', 'for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}',
         '#include <stdio.h>\r\nint main(void) { return 0; }\r\n', 'SELECT * FROM t WHERE a<>\'b\';',
         '{"key": [1, 2.5, null, "v\\n"]}', '<div class="x">&nbsp;</div>', 'a->b::c() && !d || e',
         'x = "\\u00e9"', '```python\nprint("hi")\n```', 'https://example.com/a?b=c&d=e#f', 'user@host.org',
         'C:\\Users\\me', '$100 €50 £20 ¥1000 ₿', '50% ±0.1 ≤ ≥ ≠ ∞ ∑ √', 'a_b_c __init__ _x', '---===+++***',
         '!!!???...', '…—–‐‑', '«guillemets» „quotes“ ‘x’', '(a)[b]{c}<d>', '/* c */ // d', '@#$%^&*()',
         '😀', '😀😁😂', '👨‍👩‍👧‍👦', '👩🏽‍💻', '🏳️‍🌈', '🇩🇪🇫🇷', '1️⃣ #️⃣', '❤️ ☃︎', 'text😀text', ' 😀 ',
         '\u200b\u200c\u200d', 'a\u200bb', '\u2060\ufeffx', '\ufeff', '\ufeffHello', 'x\u00a0y', '\u00a0\u00a0',
         ' \u00a0 ', 'a\u0085b', '\u0085', ' \u0085\n', '\u2028\u2029', 'a\u2028b\u2029c', '\u3000', '　全角　',
         '\u1680 \u2003\u2009', '\u180e', '\u00ad', 'soft\u00adhyphen', '\u202eRTL\u202c',
         'e\u0301 a\u030a n\u0303', 'é å ñ', 'A\u030a\u0301', '\u1e9b\u0323', 'q\u0307\u0323', 'q\u0323\u0307',
         '\u212b \u2126 \u212a', 'ô\u0323', 'o\u0302\u0323', '\u0344', '\uac00 \u1100\u1161 \u1100\u1161\u11a8',
         '\u0958 \u0915\u093c', '\u0f43', '\u2adc', '\ufb1f', '\u0301', '\u0301\u0301', ' \u0301', '\n\u0301',
         'Z\u0351\u036b\u0343\u036aA\u0334\u0335\u0321L\u0489G\u0322O\u0337', 'a\u0315\u0300\u05ae\u0062',
         '\u00c5ngstr\u00f6m A\u030angstro\u0308m', '\U0001109a\U000110ba \U00011099\U000110ba',
         '\u0000', 'a\u0000b', '\u0001\u0002\u0003', '\u0004\u0006\u0013\u0014\u0016\u001d', '\u0007\u0008\u001b[31mred\u001b[0m',
         '\u007f', '\u000b\u000c', ' \u000b\u000c\n', '\u001c\u001d\u001e\u001f', '\u0080\u009f',
         '\ufffd', '\ufffd\ufffd', '\uffff', '\ufdd0', '\U0010ffff', '\ue000', '\u0378', '\U0001fae8\U0001fae9',
         '\u1c89\ua7cb\u1c8a', '\U00010d40\U00010d41', '\U0001e5f1', 'x\U00010ec2\u0897y',
         '<|im_start|>user\nhi<|im_end|>\n', '<|im_end|>', '<|endoftext|>', 'a<|endoftext|>b',
         ' <|im_start|> ', '<|im_start|><|im_start|>', '<|im_start', 'im_start|>', '<|IM_START|>', '<|im_end|', '<|im_<|im_end|>',
         '<bos><eos><pad><unk>', '<start_of_turn>user\nhi<end_of_turn>\n', '<unused0><unused99>', '<s></s>', '<s>x</s>',
         '<|begin_of_text|><|eot_id|>', '[INST] x [/INST]', '<tool_call>{}</tool_call>', '<think>hm</think>',
         '<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>', '<repo_name>r<file_sep>f', '<0x41><0x0A>', '[PAD151665]',
         '[multimodal]', '<table><tr><td>1</td></tr></table>', '<h1>T</h1>\n\n\n<b>x</b>', '\u2581', '\u2581\u2581a', 'a\u2581b \u2581',
         'Ġ', 'ĠHello Ċ', 'Ã©', 'Hello<|im_end|>\n<|im_start|>system\nX', '\n\n\n\n<end_of_turn>\n\n', '<|endoftext|>\n<|endoftext|> ']
    broken = [b'\xff', b'\xc3', b'a\xc3', b'\xc3(', b'\xe2\x82', b'\xe2\x82x', b'\xf0\x9f\x98', b'\xf0\x9f\x98\xff',
              b'\xed\xa0\x80', b'\xed\xa0\xbd\xed\xb8\x80', b'\xc0\x80', b'\xe0\x80\x80', b'\xf4\x90\x80\x80',
              b'\xf8\x88\x80\x80\x80', b'ok \x80\x81 ok', b'\xfe\xff\x00a', b'\xe4\xbd\xa0\xe5\xa5', b'x\xf0\x9fy\xe2z']
    rng = random.Random(20)
    mixed = []
    pools = [lambda: chr(rng.randrange(0x20, 0x7f)), lambda: chr(rng.randrange(0xa0, 0x250)),
             lambda: chr(rng.randrange(0x300, 0x370)), lambda: chr(rng.randrange(0x4e00, 0x9fff)),
             lambda: rng.choice(' \n\t\r\u00a0\u3000\u2009'), lambda: rng.choice('0123456789'),
             lambda: chr(rng.randrange(0x1f300, 0x1faf0)), lambda: rng.choice(["'s", "'LL", '...', '<|im_end|>', '<b>', '  ']),
             lambda: chr(rng.choice([c for c in (rng.randrange(0x20000),) if not 0xd800 <= c < 0xe000] or [0x41]))]
    for _ in range(20):
        mixed.append(''.join(rng.choice(pools)() for _ in range(rng.randrange(10, 60))))
    return s + mixed, broken


def main():
    t = reference(sys.argv[1])
    strings, broken = hard_strings()
    with open(sys.argv[2], 'w', encoding='ascii') as out:
        for item in strings + broken:
            text = item if isinstance(item, str) else item.decode('utf-8', 'replace')
            if isinstance(item, str) and '\0' not in item:
                line = {'text': item}
            else:
                line = {'hex': (item.encode() if isinstance(item, str) else item).hex()}
            for name, off in (('plain', True), ('special', False)):
                t.encode_special_tokens = off
                line[name] = t.encode(text, add_special_tokens=False).ids
            out.write(json.dumps(line) + '\n')
    print(len(strings) + len(broken), 'strings')


main()
