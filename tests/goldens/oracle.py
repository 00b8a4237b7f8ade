"""The float32 model that the goldens come from: a GGUF of llama, qwen2 or gemma3, every weight dequantised.

It shares no code with the library, quantises no activation, keeps K and V in float32 and uses torch for nothing but
matrix products. What is easily got wrong, and how it is here:
- llama files hold q and k with the rows of each head interleaved, so rope turns the pairs (0,1), (2,3), ...; qwen2
  and gemma3 turn (i, i + k/2).
- gemma3 files hold 1 + w as the norm weight already, so nothing is added here; the embedding is scaled by sqrt(d).
- gemma3: every sixth layer sees all of the past with the file's rope base; the others see `sliding_window` tokens,
  the token itself among them (j > i - window), with rope base 10,000.
"""
import numpy as np
import torch
from gguf import GGUFReader, dequantize

LOCAL_ROPE_BASE = 10000.0  # gemma3's local layers; the files do not carry it
LOCAL_PATTERN = 6  # gemma3: layers 6, 12, 18 are global


class Oracle:
    def __init__(self, path, dtype=torch.float32):
        reader = GGUFReader(path)
        meta = lambda key, default=None: reader.fields[key].contents() if key in reader.fields else default
        self.arch = meta("general.architecture")
        if self.arch not in ("llama", "qwen2", "gemma3"):
            raise SystemExit(f"{path}: architecture {self.arch}, know llama, qwen2 and gemma3")
        of = lambda key, default=None: meta(f"{self.arch}.{key}", default)
        self.dtype = dtype
        self.layers, self.dim = of("block_count"), of("embedding_length")
        self.heads, self.kv_heads = of("attention.head_count"), of("attention.head_count_kv")
        self.head_dim = of("attention.key_length", self.dim // self.heads)
        self.eps = of("attention.layer_norm_rms_epsilon")
        self.rope_base = of("rope.freq_base", 10000.0)
        self.window = of("attention.sliding_window", 0)
        for key in reader.fields:
            if key.startswith(f"{self.arch}.rope.scaling") or key.endswith("softcapping"):
                raise SystemExit(f"{path}: {key} is set, and this oracle does not know it")
        self.w = {}
        for t in reader.tensors:
            data = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
            self.w[t.name] = torch.from_numpy(data).to(dtype)
        self.reset()

    def reset(self):
        """Forget the sequence."""
        self.k = [torch.empty(0, self.kv_heads, self.head_dim, dtype=self.dtype) for _ in range(self.layers)]
        self.v = list(self.k)

    def norm(self, x, weight):
        mean = (x.double() ** 2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.eps).to(self.dtype) * weight

    def rope(self, x, first, base):
        n, _, k = x.shape
        turn = base ** (-torch.arange(0, k, 2, dtype=torch.float64) / k)
        angle = torch.arange(first, first + n, dtype=torch.float64)[:, None, None] * turn
        c, s = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        if self.arch == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        a, b = x[..., : k // 2], x[..., k // 2 :]
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def attention(self, layer, q, k, v, local):
        """q [n, h, k] of the newest n tokens over all keys so far; the keys and values are appended first."""
        self.k[layer] = torch.cat((self.k[layer], k))
        self.v[layer] = torch.cat((self.v[layer], v))
        n, total = q.shape[0], self.k[layer].shape[0]
        i = torch.arange(total - n, total)[:, None]
        j = torch.arange(total)[None, :]
        seen = (j <= i) & (j > i - self.window) if local else j <= i
        group = self.heads // self.kv_heads
        out = torch.empty_like(q)
        for g in range(self.kv_heads):
            heads = slice(g * group, (g + 1) * group)
            score = q[:, heads].transpose(0, 1) @ self.k[layer][:, g].T / self.head_dim**0.5
            out[:, heads] = (score.masked_fill(~seen, -torch.inf).softmax(-1) @ self.v[layer][:, g]).transpose(0, 1)
        return out

    def block(self, layer, x):
        w = lambda name: self.w[f"blk.{layer}.{name}.weight"]
        gemma = self.arch == "gemma3"
        local = gemma and (layer + 1) % LOCAL_PATTERN != 0
        h = self.norm(x, w("attn_norm"))
        q, k, v = (h @ w(f"attn_{name}").T for name in "qkv")
        if self.arch == "qwen2":
            q, k, v = (y + self.w[f"blk.{layer}.attn_{name}.bias"] for y, name in zip((q, k, v), "qkv"))
        q = q.view(len(x), self.heads, self.head_dim)
        k, v = (y.view(len(x), self.kv_heads, self.head_dim) for y in (k, v))
        if gemma:
            q, k = self.norm(q, w("attn_q_norm")), self.norm(k, w("attn_k_norm"))
        first, base = self.k[layer].shape[0], LOCAL_ROPE_BASE if local else self.rope_base
        q, k = self.rope(q, first, base), self.rope(k, first, base)
        y = self.attention(layer, q, k, v, local).flatten(1) @ w("attn_output").T
        x = x + (self.norm(y, w("post_attention_norm")) if gemma else y)
        h = self.norm(x, w("ffn_norm"))
        gate = h @ w("ffn_gate").T
        gate = torch.nn.functional.gelu(gate, approximate="tanh") if gemma else torch.nn.functional.silu(gate)
        y = (gate * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return x + (self.norm(y, w("post_ffw_norm")) if gemma else y)

    @torch.inference_mode()
    def logits(self, ids, last=None, chunk=256):
        """Append ids to the sequence; the logits [last, vocab] of the newest `last` of them (all when None)."""
        last = len(ids) if last is None else last
        rows = []
        for at in range(0, len(ids), chunk):
            x = self.w["token_embd.weight"][torch.tensor(ids[at : at + chunk])]
            if self.arch == "gemma3":
                x = x * torch.tensor(self.dim**0.5, dtype=self.dtype)
            for layer in range(self.layers):
                x = self.block(layer, x)
            rows.append(x[max(0, len(ids) - last - at) :])
        x = self.norm(torch.cat(rows), self.w["output_norm.weight"])
        return x @ self.w.get("output.weight", self.w["token_embd.weight"]).T
