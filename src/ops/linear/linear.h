/* ops/linear: the contract is in sop/desc.h, the packed layout in pack.h. */
#ifndef OPS_LINEAR_H
#define OPS_LINEAR_H

#include "sop/desc.h"

extern const char *const sop_linear_cases[];                                   /* linear_cases.c */
sop_status sop_linear_reference(const sop_call *call, const sop_judge *judge); /* linear_ref.c */
sop_status sop_linear_ref(const sop_call *call);
const char *sop_linear_c_refuse(const void *desc); /* linear_c.c */
sop_status sop_linear_c(const sop_call *call);

/* quantised weights and activations: linear_q8x_avx2.c */
const char *sop_linear_q8x_refuse(const void *desc);
sop_status sop_linear_q8x_avx2_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_linear_q8x_avx2(const sop_call *call);
sop_status sop_linear_q8x_vnni_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_linear_q8x_vnni(const sop_call *call); /* linear_q8x_vnni.c */

/* float32 activations: linear_f32x_avx2.c, linear_f32x_avx512.c */
const char *sop_linear_f32x_refuse(const void *desc);
sop_status sop_linear_f32x_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                size_t budget, sop_split *split);
sop_status sop_linear_f32x_avx2(const sop_call *call);
sop_status sop_linear_f32x_avx512(const sop_call *call);

/* many tokens on tiles: linear_bf16x2_amx.c */
const char *sop_linear_bf16x2_refuse(const void *desc);
sop_status sop_linear_bf16x2_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split);
sop_status sop_linear_bf16x2_amx(const sop_call *call);

/* CUDA: linear_cuda.cu takes everything. Few tokens: linear_few_sm90.cu, linear_stream_sm90.cu and
 * linear_skinny_sm90.cu; weights of 8 and 4 bits: linear_planes_sm90.cu, linear_stream_quant_sm90.cu,
 * linear_skinny_quant_sm80.cu. Many tokens: linear_gemm_sm90.cu, linear_gemm_sm80.cu */
sop_status sop_linear_cuda(const sop_call *call);
const char *sop_linear_few_sm90_refuse(const void *desc);
sop_status sop_linear_few_sm90_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_linear_few_sm90(const sop_call *call);
const char *sop_linear_skinny_refuse(const void *desc);
sop_status sop_linear_skinny_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split);
sop_status sop_linear_skinny_sm90(const sop_call *call);
const char *sop_linear_stream_sm90_refuse(const void *desc);
sop_status sop_linear_stream_sm90_plan(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_stream_sm90(const sop_call *call);
const char *sop_linear_stream_quant_sm90_refuse(const void *desc);
sop_status sop_linear_stream_quant_sm90_plan(const void *desc, const int32_t *params,
                                             const sop_facts *facts, size_t budget,
                                             sop_split *split);
sop_status sop_linear_stream_quant_sm90(const sop_call *call);
const char *sop_linear_planes_sm90_refuse(const void *desc);
sop_status sop_linear_planes_sm90_plan(const void *desc, const int32_t *params,
                                       const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_planes_sm90(const sop_call *call);
const char *sop_linear_skinny_quant_refuse(const void *desc);
sop_status sop_linear_skinny_quant_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_skinny_quant_sm80(const sop_call *call);
const char *sop_linear_gemm_refuse(const void *desc);
const char *sop_linear_gemm_rounded_refuse(const void *desc);
sop_status sop_linear_gemm_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                size_t budget, sop_split *split);
sop_status sop_linear_gemm_sm90(const sop_call *call);
sop_status sop_linear_gemm_sm80_plan(const void *desc, const int32_t *params,
                                     const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_gemm_sm80(const sop_call *call);
const char *sop_linear_gemm_widened_refuse(const void *desc);
sop_status sop_linear_gemm_widened_plan(const void *desc, const int32_t *params,
                                        const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_gemm_widened_sm90(const sop_call *call);

/* codes of e4m3: linear_stream_f8_sm90.cu has few tokens, linear_f8_sm90.cu many */
const char *sop_linear_stream_f8_refuse(const void *desc);
sop_status sop_linear_stream_f8_plan(const void *desc, const int32_t *params,
                                     const sop_facts *facts, size_t budget, sop_split *split);
sop_status sop_linear_stream_f8_sm90(const sop_call *call);
const char *sop_linear_f8_refuse(const void *desc);
sop_status sop_linear_f8_sm90_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                   size_t budget, sop_split *split);
sop_status sop_linear_f8_sm90(const sop_call *call);

/* by a library: linear_cublaslt.cu */
const char *sop_linear_cublaslt_refuse(const void *desc);
sop_status sop_linear_cublaslt_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                    size_t budget, sop_split *split);
sop_status sop_linear_cublaslt_prepare(const void *desc, sop_device *device, void **state);
void sop_linear_cublaslt_release(void *state);
sop_status sop_linear_cublaslt(const sop_call *call);
const char *sop_linear_cutlass_refuse(const void *desc); /* linear_cutlass.cu */
sop_status sop_linear_cutlass(const sop_call *call);

#endif
