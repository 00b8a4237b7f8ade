/* model/arch.h: what an architecture's file says about a model, and the common builder of programs.
 *
 * An architecture is one file with one sop_arch: it reads the parameters that are its own; names of
 * tensors, the modules of a layer and their order are the builder's (transformer.c). */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "model/file.h"
#include "sop/config.h"
#include "super/program.h"

enum { SOP_MAX_LAYERS = 1024 };

typedef struct sop_params {
    int64_t layers, dim, heads, kv_heads, k, v, ffn, vocab, ctx, rot;
    double eps;
    float norm_offset;               /* 1: the file holds w of Gemma's 1 + w */
    float embed_scale;               /* 0: none */
    float scale, cap;                /* of attention; 0: 1 / sqrt(k), none */
    int32_t act;                     /* sop_act */
    int32_t interleaved;             /* rope */
    bool qk_norm, post_norm;         /* norms of each head's q and k; of what a block adds */
    sop_rope_scaling rope[2];        /* 0: layers that see all; 1: windowed layers */
    int64_t window[SOP_MAX_LAYERS];  /* 0: sees all */
    int32_t rope_of[SOP_MAX_LAYERS]; /* which of rope[] */
} sop_params;

typedef struct sop_arch {
    const char *name; /* general.architecture, and model_type without "_text" */
    sop_status (*params)(const sop_file *f, sop_params *p); /* after sop_params_common() */
} sop_arch;

extern const sop_arch sop_arch_qwen2, sop_arch_qwen3, sop_arch_llama, sop_arch_mistral,
    sop_arch_gemma3, sop_arch_phi3;

/* What all architectures say alike, under the names of GGUF ("llama.embedding_length") or of
 * config.json. SOP_E_FORMAT names a key that is missing or out of range. */
sop_status sop_params_common(const sop_file *f, const char *arch, sop_params *p);

/* A key by its GGUF name without the architecture, and by config.json's. */
bool sop_params_i64(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                    int64_t *out);
bool sop_params_f64(const sop_file *f, const char *arch, const char *gguf, const char *hf,
                    double *out);
/* Rope scaling of config.json under a prefix ("rope_parameters", "rope_scaling"). */
sop_status sop_params_rope_hf(const sop_file *f, const char *prefix, const sop_params *p,
                              sop_rope_scaling *r);
/* Every layer has this window. */
void sop_params_window(sop_params *p, int64_t window);

/* The type that activations have between modules: on a GPU that of 16-bit weights, unless numerics is
 * exact; else float32. */
int32_t sop_act_dtype(const sop_file *f, const sop_device *device, int32_t numerics);
/* The modules of all layers, with their weights from the file. Keys and values of 16 bits have the
 * activations' type. n_parameters counts weights. */
sop_status sop_transformer(const sop_file *f, const sop_params *p, const sop_config *config,
                           int32_t act, sop_program *program, int64_t *n_parameters);

#endif
