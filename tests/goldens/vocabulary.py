"""The tokenizer of a GGUF, built with Hugging Face `tokenizers` as the model's own tokenizer.json builds it."""
import json

import jinja2
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROL, USER_DEFINED = 3, 4  # token types of the file; 3 is read as text unless asked for, 4 is always one token

# Qwen2's own split: contractions, letters, one digit, runs of punctuation, newlines, spaces.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(kind, tokens, merges):
    """Byte-level BPE; `kind` is the file's tokenizer.ggml.pre."""
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    if kind == "qwen2":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    elif kind == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=True)]
        )
    else:
        raise SystemExit(f"pre-tokenizer {kind}, know qwen2 and smollm")
    t.decoder = decoders.ByteLevel()
    return t


def sentencepiece(tokens, scores, types):
    """SentencePiece BPE as Gemma has it: no space is put in front, bytes stand in for what the vocabulary lacks.

    A merge is any split of a token into two tokens; the better score goes first, as SentencePiece does it."""
    vocab = {s: i for i, s in enumerate(tokens)}
    merges = []
    for i, s in enumerate(tokens):
        if types[i] == 1:
            merges += [(-scores[i], vocab[s[:c]], s[:c], s[c:]) for c in range(1, len(s)) if s[:c] in vocab and s[c:] in vocab]
    merges.sort(key=lambda m: m[:2])
    t = Tokenizer(models.BPE(vocab, [m[2:] for m in merges], byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return t


class Vocabulary:
    def __init__(self, path):
        fields = GGUFReader(path).fields
        get = lambda key, default=None: fields["tokenizer." + key].contents() if "tokenizer." + key in fields else default
        tokens, types = get("ggml.tokens"), get("ggml.token_type")
        if get("ggml.model") == "gpt2":
            self.t = byte_level(get("ggml.pre"), tokens, get("ggml.merges"))
        else:
            self.t = sentencepiece(tokens, get("ggml.scores"), types)
        whole = [AddedToken(s, normalized=False, special=types[i] == CONTROL)
                 for i, s in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED)]
        self.t.add_tokens(whole)
        self.template = get("chat_template")
        self.bos = get("ggml.bos_token_id") if get("ggml.add_bos_token", get("ggml.model") == "llama") else None

    def encode(self, text):
        """The ids of text, its special tokens included, no BOS."""
        return self.t.encode(text, add_special_tokens=False).ids

    def prompt(self, text, chat):
        """The ids a model is run on: BOS where the file asks for it; the chat template where it has one."""
        if chat and self.template:
            env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
            env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
            text = env.from_string(self.template).render(
                messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        return ([self.bos] if self.bos is not None else []) + self.encode(text)

    def decode(self, ids):
        return self.t.decode(ids, skip_special_tokens=False)
