#include "ops/attention_grad/attention_grad_launch.cuh"
#include "ops/attention_grad/attention_grad_sm90.cuh"

template <int D, bool KEYS, bool CAP, typename G> struct by_wgmma {
    static constexpr auto kernel = sop_attention_grad_wgmma<D, KEYS, CAP, G>;
    enum {
        threads = SOP_GRAD_THREADS,
        rows = SOP_GRAD_SIDE,
        shared = 6 * SOP_GRAD_SIDE * D * 2 + 2 * SOP_GRAD_SIDE * 8 + 1024
    };
};

extern "C" sop_status sop_attention_grad_sm90(const sop_call *call)
{
    return grad_run_any<by_wgmma>(call);
}
