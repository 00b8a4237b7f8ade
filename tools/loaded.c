#include "loaded.h"

#include "base/clock.h"
#include "harness/harness.h"
#include "model/synth.h"

const char *loaded_model, *loaded_config;
int64_t loaded_threads, loaded_ctx;
int32_t loaded_kv = -1, loaded_device, loaded_numerics = -1;

static const int32_t kv_types[] = {SOP_F16, SOP_F32, SOP_I8, SOP_F8}; /* as the option's words */

static sop_status config_of(sop_config *c)
{
    sop_config_defaults(c);
    const sop_status s = loaded_config ? sop_config_load(loaded_config, c) : SOP_OK;
    if (loaded_threads) c->threads = (int32_t)loaded_threads;
    if (loaded_ctx) c->ctx = loaded_ctx;
    if (loaded_kv >= 0) c->kv_dtype = kv_types[loaded_kv];
    if (loaded_numerics >= 0) c->numerics = loaded_numerics;
    return s;
}

int loaded_open(loaded *m, const sop_limits *limits)
{
    char path[CLI_PATH];
    sop_config config;
    sop_limits sizes = *limits;
    const double start = sop_now_s();
    *m = (loaded){.seq = -1};
    const int code = cli_model_path(loaded_model, path, sizeof path);
    if (code) return code;
    sop_status s = config_of(&config);
    if (!sizes.ctx) sizes.ctx = config.ctx;
    m->numerics = config.numerics;
    if (s == SOP_OK) s = cli_device(loaded_device, &m->device);
    if (s == SOP_OK) s = sop_runtime_create(&config, m->device, NULL, &m->runtime);
    if (s == SOP_OK) s = cli_plugin_load(sop_runtime_planner(m->runtime));
    if (s == SOP_OK) s = sop_model_open(m->runtime, path, &m->model);
    if (s == SOP_OK && !sop_synth_is(path)) s = sop_tokenizer_open(path, &m->tokenizer);
    if (s == SOP_OK) s = sop_model_super(m->model, &sizes, &m->super);
    if (s == SOP_OK) s = sop_super_open(m->super, &m->seq);
    if (s != SOP_OK) {
        const int failed = cli_status(s);
        loaded_close(m);
        return failed;
    }
    sop_super_facts_of(m->super, &m->facts);
    sop_model_facts_of(m->model, &m->model_facts);
    m->open_s = sop_now_s() - start;
    return CLI_OK;
}

void loaded_close(loaded *m)
{
    sop_super_destroy(m->super);
    sop_tokenizer_close(m->tokenizer);
    sop_model_close(m->model);
    sop_runtime_destroy(m->runtime);
    sop_device_destroy(m->device);
}

void loaded_measure(loaded *m)
{
    sop_ceilings c;
    if (m->read_bytes_s > 0) return;
    if (sop_ceilings_of(sop_runtime_device(m->runtime), &c) == SOP_OK)
        m->read_bytes_s = c.read_bytes_s;
}
