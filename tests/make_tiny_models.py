"""Makes tests/data/tiny: small random models of every architecture, with reference logits.

usage: make_tiny_models.py [OUT]        (needs torch, transformers 5, tokenizers and gguf)

Each is written as a Hugging Face folder and as a GGUF of the same weights, in llama.cpp's names and
conventions. What the files are and how to read the logits: tests/data/tiny/README.md.
"""
import json, shutil, sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

N_IDS = 24
# Sentences of our own; the merges of the tiny tokenizers come from them.
TEXT = """The quick brown fox jumps over the lazy dog, and the dog does not mind at all.
A small model has small weights, and the weights are random: the answer means nothing.
for i in range(10): print(i, "and then", i + 1)
The other day there was rain over the hills; then the sun came and it was warm again.
Numbers such as 12, 128 and 4096 stand here, and so do words like there, then, this and that."""


# ---- tokenizers ------------------------------------------------------------------------------

BYTE_LEVEL = list(pre_tokenizers.ByteLevel.alphabet())
SPLIT = {  # the patterns that these families publish
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


class Vocab:
    """What a GGUF needs of a tokenizer, and its tokenizer.json."""

    def __init__(self, pre, control, bos, eos, template, size=320):
        self.pre, self.bos, self.eos, self.template = pre, bos, eos, template
        byte_level = pre in SPLIT
        t = Tokenizer(models.BPE())
        if byte_level:
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(SPLIT[pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            start = 256
        else:
            t.pre_tokenizer = pre_tokenizers.Metaspace()
            start = 256 + 4
        room = size - len(control) if byte_level else size - 256 - len(control)
        trainer = trainers.BpeTrainer(vocab_size=room, show_progress=False,
                                      initial_alphabet=BYTE_LEVEL if byte_level else [])
        t.train_from_iterator(TEXT.split("\n"), trainer)
        model = json.loads(t.to_str())["model"]
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        self.merges = [tuple(m) for m in model["merges"]]
        if byte_level:
            self.tokens = pieces + control
            self.types = [1] * len(pieces) + [3] * len(control)
            self.scores = None
        else:  # SentencePiece: <unk> and controls, bytes, pieces; the sooner merged the better
            rank = {a + b: i for i, (a, b) in enumerate(self.merges)}
            self.tokens = control + [f"<0x{b:02X}>" for b in range(256)] + pieces
            self.types = [2 if c == "<unk>" else 3 for c in control] + [6] * 256 + [1] * len(pieces)
            self.scores = [0.0] * (len(control) + 256) + [-float(rank.get(p, 1000 + i))
                                                          for i, p in enumerate(pieces)]
        assert len(self.tokens) == size and len(set(self.tokens)) == size, len(self.tokens)
        self.id = {t: i for i, t in enumerate(self.tokens)}
        self.byte_level, self.control = byte_level, control

    def save(self, folder):
        vocab = {t: i for t, i in self.id.items() if not (self.byte_level and t in self.control)}
        bos = self.bos and self.id[self.bos]
        if self.byte_level:
            t = Tokenizer(models.BPE(vocab=vocab, merges=self.merges))
            if self.pre == "qwen2":
                t.normalizer = normalizers.NFC()
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(SPLIT[self.pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            t.decoder = decoders.ByteLevel()
            t.post_processor = processors.ByteLevel(trim_offsets=False)
        else:
            t = Tokenizer(models.BPE(vocab=vocab, merges=self.merges, unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
            space = [normalizers.Replace(" ", "▁")]
            strip = []
            if self.pre == "llama":  # a space before the text, and none of it in the answer
                space, strip = [normalizers.Prepend("▁")] + space, [decoders.Strip(" ", 1, 0)]
            t.normalizer = normalizers.Sequence(space) if len(space) > 1 else space[0]
            t.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + strip)
        t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in self.control])
        if bos is not None:
            template = processors.TemplateProcessing(
                single=f"{self.bos} $A", pair=f"{self.bos} $A {self.bos} $B",
                special_tokens=[(self.bos, bos)])
            t.post_processor = template if not self.byte_level else processors.Sequence(
                [processors.ByteLevel(trim_offsets=False), template])
        assert t.get_vocab_size() == len(self.tokens)
        assert t.get_vocab() == self.id
        (folder / "tokenizer.json").write_text(t.to_str(), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": self.bos,
                  "eos_token": self.eos, "add_bos_token": bos is not None,
                  "chat_template": self.template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    def write(self, w):
        w.add_tokenizer_model("gpt2" if self.byte_level else "llama")
        w.add_tokenizer_pre(self.pre if self.byte_level else "default")
        w.add_token_list(self.tokens)
        if self.scores:
            w.add_token_scores(self.scores)
        w.add_token_types(self.types)
        if self.byte_level:
            w.add_token_merges([" ".join(m) for m in self.merges])
        if self.bos:
            w.add_bos_token_id(self.id[self.bos])
        w.add_eos_token_id(self.id[self.eos])
        if not self.byte_level:
            w.add_unk_token_id(self.id["<unk>"])
            w.add_add_space_prefix(self.pre == "llama")
        w.add_add_bos_token(self.bos is not None)
        w.add_chat_template(self.template)


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
          "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
          "{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + "
         "('model' if message['role'] == 'assistant' else message['role']) + '\n' + "
         "message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
           "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
           "{{ message['content'] + eos_token }}{% endif %}{% endfor %}")


def qwen_vocab():
    return Vocab("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, "<|im_end|>", CHATML)


# ---- models ----------------------------------------------------------------------------------


def config(kind, v, **more):
    base = dict(vocab_size=len(v.tokens), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                rms_norm_eps=1e-6, tie_word_embeddings=False, eos_token_id=v.id[v.eos],
                bos_token_id=v.id[v.bos] if v.bos else None, pad_token_id=None)
    return getattr(transformers, kind)(**{**base, **more})


def random_weights(model, seed):
    """Weights large enough that every part matters, rounded so that f16 and bf16 both hold them."""
    g = torch.Generator().manual_seed(seed)
    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            w = torch.randn(p.shape, generator=g)
            if "norm" in name:
                w = 0.25 * w + (0.0 if gemma else 1.0)
            elif name.endswith("bias"):
                w = 0.3 * w
            elif "embed_tokens" in name:
                # tied: small enough that the answer is not just the token that was read
                w = w * (0.1 if gemma else 0.15 if model.config.tie_word_embeddings else 1.0)
            else:
                w = w * 1.4 / p.shape[-1] ** 0.5
            w = w.to(torch.bfloat16).float()
            w[w.abs() < 2.0**-14] = 0
            assert torch.equal(w, w.half().float())
            p.copy_(w)


@torch.no_grad()
def reference(model, ids):
    model = model.float().eval()
    return model(torch.tensor([ids])).logits[0].float().numpy()


def write_reference(folder, name, ids, logits):
    assert np.isfinite(logits).all()
    (folder / f"{name}.ids").write_bytes(np.array(ids, dtype="<i4").tobytes())
    (folder / f"{name}.logits").write_bytes(logits.astype("<f4").tobytes())


def save_hf(model, v, folder, dtype, shards=1, config_v4=False):
    folder.mkdir(parents=True)
    model.config.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    saved["architectures"] = [type(model).__name__]
    saved["dtype"] = str(dtype).removeprefix("torch.")
    saved.pop("transformers_version", None)
    if config_v4:  # the names that files had before transformers 5
        saved["torch_dtype"] = saved.pop("dtype")
        rope = saved.pop("rope_parameters")
        saved["rope_theta"] = rope.pop("rope_theta")
        saved["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    (folder / "config.json").write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    tied = model.config.tie_word_embeddings
    w = {n: p.to(dtype).contiguous() for n, p in model.state_dict().items()
         if not (tied and n == "lm_head.weight")}
    if shards == 1:
        save_file(w, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        names, where = sorted(w), {}
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            part = names[i::shards]
            save_file({n: w[n] for n in part}, folder / file, metadata={"format": "pt"})
            where.update({n: file for n in part})
        size = sum(p.numel() * p.element_size() for p in w.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    v.save(folder)


def permute(w, heads):
    """Rows of each head from two halves to pairs: what conversion to the llama architecture does."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(c):
    r, k = c.rope_parameters, c.head_dim or c.hidden_size // c.num_attention_heads
    out = []
    for f in r["rope_theta"] ** (-np.arange(0, k, 2) / k):
        wave, old = 2 * np.pi / f, r["original_max_position_embeddings"]
        if wave < old / r["high_freq_factor"]:
            out.append(1.0)
        elif wave > old / r["low_freq_factor"]:
            out.append(r["factor"])
        else:
            s = (old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            out.append(1 / ((1 - s) / r["factor"] + s))
    return np.array(out, dtype=np.float32)


ARCH = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3,
        "gemma3": gguf.MODEL_ARCH.GEMMA3, "llama": gguf.MODEL_ARCH.LLAMA,
        "phi3": gguf.MODEL_ARCH.PHI3}


def gguf_weights(model, arch):
    """Names and arrays as llama.cpp's converter writes them."""
    c = model.config
    names = gguf.get_tensor_name_map(ARCH[arch], c.num_hidden_layers)
    out = {}
    for n, p in model.state_dict().items():
        if c.tie_word_embeddings and n == "lm_head.weight":
            continue
        w = p.float().numpy()
        if arch == "llama" and ("q_proj" in n or "k_proj" in n):
            w = permute(w, c.num_attention_heads if "q_proj" in n else c.num_key_value_heads)
        if arch == "gemma3" and "norm" in n:
            w = w + 1
        name = names.get_name(n, try_suffixes=(".weight", ".bias"))
        assert name, n
        out[name] = np.ascontiguousarray(w)
    return out


def write_gguf(path, arch, model, v, plain):
    """plain: the type of matrices; vectors are f32."""
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(f"tiny random {path.stem}")
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(c.vocab_size)
    k = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    if arch in ("qwen3", "gemma3"):
        w.add_key_length(k)
        w.add_value_length(k)
    if arch in ("llama", "phi3"):
        w.add_rope_dimension_count(int(k * (getattr(c, "partial_rotary_factor", None) or 1)))
    rope = c.rope_parameters
    if arch == "gemma3":
        w.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        w.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        w.add_sliding_window(c.sliding_window)
        w.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        rope = rope["full_attention"]
    else:
        w.add_rope_freq_base(rope["rope_theta"])
        if getattr(c, "sliding_window", None):
            w.add_sliding_window(c.sliding_window)
    if rope["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    v.write(w)
    tensors = gguf_weights(model, arch)
    if rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(c)
    for name, x in tensors.items():
        kind = Q.F32 if x.ndim == 1 else plain
        w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- quantised weights -----------------------------------------------------------------------


def random_blocks(shape, kind, scale, rng):
    """Random but sane blocks of a K format, which the gguf package reads and does not write."""
    n = shape[0] * shape[1] // 256
    f16 = lambda x: np.asarray(x, dtype="<f2").view(np.uint8).reshape(n, 2)
    byte = lambda m: rng.integers(0, 256, (n, m), dtype=np.uint8)
    wobble = rng.uniform(0.5, 1.5, n)
    if kind == Q.Q6_K:  # w = d * scales * (q - 32)
        scales = rng.integers(-100, 100, (n, 16), dtype=np.int8)
        return np.concatenate([byte(192), scales.view(np.uint8), f16(scale / 1000 * wobble)], 1)
    # w = d * s * q - dmin * m, with s = m: both centred when dmin is d * half the range of q
    levels = 15 if kind == Q.Q4_K else 31
    d = np.asarray(scale / 10 / levels * wobble, dtype=np.float16)
    s = rng.integers(10, 64, (n, 8), dtype=np.uint8)
    packed = np.empty((n, 12), dtype=np.uint8)
    packed[:, 0:4] = (s[:, 0:4] & 63) | (s[:, 4:8] >> 4 << 6)
    packed[:, 4:8] = packed[:, 0:4]
    packed[:, 8:12] = (s[:, 4:8] & 15) | ((s[:, 4:8] & 15) << 4)
    parts = [f16(d), f16(d.astype(np.float32) * levels / 2), packed]
    return np.concatenate(parts + ([byte(32)] if kind == Q.Q5_K else []) + [byte(128)], 1)


def quantised(out, rng):
    """qwen2 with hidden 256, its matrices in every block format that superop reads."""
    v = qwen_vocab()
    c = config("Qwen2Config", v, hidden_size=256, intermediate_size=256, tie_word_embeddings=True)
    model = transformers.Qwen2ForCausalLM._from_config(c, attn_implementation="eager")
    random_weights(model, 7)
    path = out / "quant.gguf"
    kinds = {"token_embd": Q.Q8_0, "blk.0.attn_q": Q.Q4_K, "blk.0.attn_k": Q.Q4_0, "blk.0.attn_v": Q.Q6_K,
             "blk.0.attn_output": Q.Q5_K, "blk.0.ffn_gate": Q.Q4_K, "blk.0.ffn_up": Q.Q4_1,
             "blk.0.ffn_down": Q.Q6_K, "blk.1.attn_q": Q.Q5_0, "blk.1.attn_k": Q.Q8_0,
             "blk.1.attn_v": Q.Q5_1, "blk.1.attn_output": Q.Q4_K, "blk.1.ffn_gate": Q.Q5_0,
             "blk.1.ffn_up": Q.Q4_K, "blk.1.ffn_down": Q.Q6_K}
    w = gguf.GGUFWriter(path, "qwen2")
    w.add_name("tiny random quant")
    for add, x in ((w.add_context_length, 256), (w.add_embedding_length, 256), (w.add_block_count, 2),
                   (w.add_feed_forward_length, 256), (w.add_head_count, 4), (w.add_head_count_kv, 2),
                   (w.add_layer_norm_rms_eps, 1e-6), (w.add_rope_freq_base, c.rope_parameters["rope_theta"])):
        add(x)
    v.write(w)
    back = {gguf.get_tensor_name_map(ARCH["qwen2"], 2).get_name(n, (".weight", ".bias")): n
            for n in model.state_dict()}
    state = model.state_dict()
    for name, x in gguf_weights(model, "qwen2").items():
        kind = Q.F32 if x.ndim == 1 else kinds[name.removesuffix(".weight")]
        if kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
            data = random_blocks(x.shape, kind, 1.2 / x.shape[-1] ** 0.5, rng).reshape(x.shape[0], -1)
        else:
            data = gguf.quants.quantize(x, kind)
        w.add_tensor(name, data, raw_dtype=kind)
        state[back[name]].copy_(torch.from_numpy(gguf.quants.dequantize(data, kind).reshape(x.shape).copy()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return model


# ---- quantised folders -----------------------------------------------------------------------
#
# Each function takes a matrix [n, k] apart into the tensors of a checkpoint, and gives the weights that
# these say, in float64: what superop's own blocks must say too.

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(nibbles):
    """[..., 8] numbers of 4 bits to i32 words, the first in the lowest bits."""
    words = sum(nibbles[..., e].astype(np.uint32) << np.uint32(4 * e) for e in range(8))
    return words.astype(np.uint32).view(np.int32)


def four_bits(w, rng, group=128):
    """Codes [n, k], zeros 1..15 and f16 scales [n, k / group], and what they say."""
    n, k = w.shape
    g = w.reshape(n, k // group, group)
    zero = rng.integers(5, 11, (n, k // group))
    scale = (np.abs(g).max(2) / 5).astype(np.float16)
    code = np.clip(np.rint(g / scale.astype(np.float64)[..., None]) + zero[..., None], 0, 15)
    said = scale.astype(np.float64)[..., None] * (code - zero[..., None])
    return code.reshape(n, k).astype(np.int64), zero, scale, said.reshape(n, k)


def awq(name, w, rng):
    q, zero, scale, said = four_bits(w, rng)
    words = lambda x: pack(x.T.reshape(x.shape[1], -1, 8)[..., AWQ_ORDER])
    return {f"{name}.qweight": words(q), f"{name}.qzeros": words(zero),
            f"{name}.scales": np.ascontiguousarray(scale.T)}, said


def gptq(name, w, rng):
    q, zero, scale, said = four_bits(w, rng)
    n, k = q.shape
    return {f"{name}.qweight": pack(q.T.reshape(k // 8, 8, n).swapaxes(1, 2)),
            f"{name}.qzeros": pack((zero.T - 1).reshape(-1, n // 8, 8)),
            f"{name}.scales": np.ascontiguousarray(scale.T),
            f"{name}.g_idx": np.arange(k, dtype=np.int32) // 128}, said


def packed(name, w, rng):
    """Symmetric, codes of -8 to 7 stored 8 higher, bf16 scales."""
    n, k = w.shape
    g = w.reshape(n, k // 128, 128)
    scale = torch.from_numpy(np.abs(g).max(2) / 7).to(torch.bfloat16)
    code = np.clip(np.rint(g / scale.double().numpy()[..., None]), -8, 7)
    said = scale.double().numpy()[..., None] * code
    return {f"{name}.weight_packed": pack((code + 8).astype(np.int64).reshape(n, k // 8, 8)),
            f"{name}.weight_scale": scale,
            f"{name}.weight_shape": np.array([n, k], dtype=np.int64)}, said.reshape(n, k)


def e4m3(x):
    return torch.from_numpy(x.astype(np.float32)).clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_blocks(name, w, rng):
    n, k = w.shape
    scale = np.zeros((-(-n // 128), -(-k // 128)), dtype=np.float32)
    spread = lambda: np.repeat(np.repeat(scale.astype(np.float64), 128, 0)[:n], 128, 1)[:, :k]
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            scale[i, j] = np.abs(w[128 * i:128 * i + 128, 128 * j:128 * j + 128]).max() / 448
    q = e4m3(w / spread())
    return {f"{name}.weight": q, f"{name}.weight_scale_inv": scale}, q.double().numpy() * spread()


def int8_rows(name, w, rng):
    scale = torch.from_numpy(np.abs(w).max(1, keepdims=True) / 127).to(torch.bfloat16)
    q = torch.from_numpy(np.clip(np.rint(w / scale.double().numpy()), -127, 127)).to(torch.int8)
    return {f"{name}.weight": q, f"{name}.weight_scale": scale}, (q.double() * scale.double()).numpy()


def fp8_rows(name, w, rng):
    scale = np.abs(w).max(1).astype(np.float32) / 448
    q = e4m3(w / scale[:, None])
    return {f"{name}.weight": q, f"{name}.weight_scale": scale[:, None]}, q.double().numpy() * scale[:, None]


def fp8_tensor(name, w, rng):
    scale = np.float32(np.abs(w).max() / 448)
    q = e4m3(w / scale)
    return ({f"{name}.weight": q, f"{name}.weight_scale": np.array([scale]),
             f"{name}.input_scale": np.array([1.0], dtype=np.float32)}, q.double().numpy() * float(scale))


def mixed(name, w, rng):
    """int8 and fp8 by rows, and fp8 by tensors, in one file."""
    kinds = {"q_proj": int8_rows, "gate_proj": int8_rows, "down_proj": int8_rows, "k_proj": fp8_rows,
             "up_proj": fp8_rows}
    return kinds.get(name.rsplit(".", 1)[-1], fp8_tensor)(name, w, rng)


def quantised_folder(folder, model, v, dtype, take_apart, about, rng, ids):
    """A folder beside the plain ones whose matrices take_apart() has written; the reference is of the
    weights that it says."""
    save_hf(model, v, folder, dtype)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    saved["quantization_config"] = about
    path.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    tensors = {}
    for name, p in model.state_dict().items():
        if "_proj" not in name or not name.endswith(".weight"):
            if not (model.config.tie_word_embeddings and name == "lm_head.weight"):
                tensors[name] = p.to(dtype).contiguous()
            continue
        parts, said = take_apart(name.removesuffix(".weight"), p.double().numpy(), rng)
        for n, x in parts.items():
            tensors[n] = x.contiguous() if torch.is_tensor(x) else torch.from_numpy(np.ascontiguousarray(x))
        p.copy_(torch.from_numpy(said))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    what = folder.name.removeprefix("hf-")
    write_reference(folder.parent, what, ids, reference(model, ids))


@torch.no_grad()
def quantised_folders(out, llama_vocab, phi_vocab, ids):
    theta = {"rope_type": "default", "rope_theta": 10000.0}
    size = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, tie_word_embeddings=True,
                rope_parameters=theta)
    four = {"bits": 4, "group_size": 128}
    kinds = [
        ("llama/hf-awq", torch.float16, awq, {"quant_method": "awq", "version": "gemm", "zero_point": True, **four}),
        ("llama/hf-gptq", torch.bfloat16, gptq, {"quant_method": "gptq", "desc_act": False, "sym": False,
                                                 "checkpoint_format": "gptq", **four}),
        ("llama/hf-fp8", torch.bfloat16, fp8_blocks, {"quant_method": "fp8", "activation_scheme": "dynamic",
                                                      "fmt": "e4m3", "weight_block_size": [128, 128]}),
        ("llama/hf-mixed", torch.bfloat16, mixed, {"quant_method": "compressed-tensors",
                                                   "format": "float-quantized"}),
        ("phi3/hf-awq", torch.float16, awq, {"quant_method": "awq", "version": "gemm", "zero_point": True, **four}),
        ("llama/hf-packed", torch.bfloat16, packed, {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}}}}),
    ]
    for seed, (name, dtype, take_apart, about) in enumerate(kinds):
        phi = name.startswith("phi3")
        v = phi_vocab if phi else llama_vocab
        c = config("Phi3Config" if phi else "LlamaConfig", v, **(size if phi else {**size, "head_dim": 32}))
        kind = transformers.Phi3ForCausalLM if phi else transformers.LlamaForCausalLM
        model = kind._from_config(c, attn_implementation="eager")
        random_weights(model, 20 + seed)
        shutil.rmtree(out / name, ignore_errors=True)
        quantised_folder(out / name, model, v, dtype, take_apart, about, np.random.default_rng(30 + seed), ids)


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "data" / "tiny")
    torch.set_num_threads(1)
    rng = np.random.default_rng(11)
    llama_vocab = Vocab("llama-bpe", ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                      "<|end_header_id|>", "<|eot_id|>"],
                        "<|begin_of_text|>", "<|eot_id|>", LLAMA3)
    mistral_vocab = Vocab("llama", ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>",
                          MISTRAL, 384)
    gemma_vocab = Vocab("gemma", ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>",
                                  "<end_of_turn>"], "<bos>", "<eos>", GEMMA, 384)
    theta = lambda **r: {"rope_type": "default", "rope_theta": 10000.0, **r}
    # name, GGUF architecture, class, vocabulary, configuration, type in the GGUF, in the folder, shards
    plans = [
        ("qwen2", "qwen2", "Qwen2", qwen_vocab(), dict(rope_parameters=theta(rope_theta=1000000.0)),
         Q.F16, torch.bfloat16, 1),
        ("qwen3", "qwen3", "Qwen3", qwen_vocab(),
         dict(head_dim=32, tie_word_embeddings=True, rope_parameters=theta(
             rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
         Q.BF16, torch.bfloat16, 1),
        ("llama", "llama", "Llama", llama_vocab,
         dict(rope_parameters=theta(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                    high_freq_factor=4.0, original_max_position_embeddings=64)),
         Q.F32, torch.float16, 3),
        ("mistral", "llama", "Mistral", mistral_vocab,
         dict(sliding_window=8, rope_parameters=theta()), Q.F16, torch.bfloat16, 1),
        ("gemma3", "gemma3", "Gemma3", gemma_vocab,
         dict(head_dim=32, tie_word_embeddings=True, sliding_window=8, query_pre_attn_scalar=32,
              layer_types=["sliding_attention", "full_attention"],
              rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0,
                                                  "rope_theta": 1000000.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
         Q.F16, torch.float32, 1),
        ("phi3", "phi3", "Phi3", mistral_vocab,
         dict(sliding_window=8, rope_parameters=theta(partial_rotary_factor=0.5),
              partial_rotary_factor=0.5), Q.F16, torch.bfloat16, 1),
    ]
    for seed, (name, arch, kind, v, more, plain, dtype, shards) in enumerate(plans):
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        c = config(("Gemma3Text" if kind == "Gemma3" else kind) + "Config", v, **more)
        model = getattr(transformers, kind + "ForCausalLM")._from_config(c, attn_implementation="eager")
        random_weights(model, seed)
        save_hf(model, v, folder / "hf", dtype, shards, config_v4=name == "llama")
        write_gguf(folder / "model.gguf", arch, model, v, plain)
        ids = rng.integers(0, len(v.tokens), N_IDS).tolist()
        write_reference(folder, "model", ids, reference(model, ids))
        if name == "qwen2":
            quant = quantised(folder, rng)
            write_reference(folder, "quant", ids, reference(quant, ids))
    ids = rng.integers(0, len(llama_vocab.tokens), N_IDS).tolist()
    quantised_folders(out, llama_vocab, mistral_vocab, ids)


main()
