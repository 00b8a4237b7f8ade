#include "ops/attention_grad/attention_grad_launch.cuh"
#include "ops/attention_grad/attention_grad_sm90.cuh"

template <int D, bool KEYS, bool CAP, typename G> struct by_wgmma {
    static constexpr auto kernel = sop_attention_grad_wgmma<D, KEYS, CAP, G>;
};

extern "C" sop_status sop_attention_grad_sm90(const sop_call *call)
{
    return grad_run_any<by_wgmma>(call, 1024);
}
