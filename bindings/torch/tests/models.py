"""Tiny models with random weights, of every architecture that superop knows."""

import torch
import transformers as t

SMALL = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def qwen2(**kw):
    return t.Qwen2ForCausalLM(t.Qwen2Config(**SMALL, **kw))


def qwen3(**kw):
    return t.Qwen3ForCausalLM(t.Qwen3Config(**SMALL, head_dim=32, **kw))


def llama(**kw):
    return t.LlamaForCausalLM(t.LlamaConfig(**SMALL, **kw))


def mistral(**kw):
    return t.MistralForCausalLM(t.MistralConfig(**SMALL, sliding_window=8, **kw))


def gemma3(**kw):
    config = t.Gemma3TextConfig(
        **SMALL, head_dim=32, sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"], **kw
    )
    return t.Gemma3ForCausalLM(config)


MAKERS = [qwen2, qwen3, llama, mistral, gemma3]


def make(maker, device="cpu", dtype=torch.float32, seed=0, room=None, **kw):
    torch.manual_seed(seed)
    model = maker(**kw)
    if room:
        model.config.max_position_embeddings = room  # rope makes its angles as they come
    for p in model.parameters():  # biases and norms too: at their start they hide what is forgotten
        torch.nn.init.normal_(p, std=0.2 if p.dim() == 1 else 0.08)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight") and maker is not gemma3:
            p.data += 1
    model.generation_config.eos_token_id = None
    return model.to(device, dtype).eval()
