/* Shapes to check and time: sizes 0 and 1, one under and over each tile of tokens (1 2 4 8 16 32) and
 * of rows (16), one block of k, ragged k, strides, every format, and real layers. */
#include "ops/linear/linear.h"

#define BOTH " layouts=both"
#define THREE " layouts=both layouts1=both layouts2=both"

const char *const sop_linear_cases[] = {
    "m=0 n=16 k=32" BOTH,
    "m=2 n=3 k=0 bias=1" BOTH,
    "m=1 n=0 k=32",
    "m=1 n=1 k=1" BOTH,
    "m=1 n=16 k=32 w=q8_0" BOTH,
    "m=1 n=17 k=32 w=q4_0 bias=1" BOTH,
    "m=2 n=15 k=32 w=q4_1" BOTH,
    "m=3 n=33 k=64 w=q5_0" BOTH,
    "m=4 n=16 k=96 w=q5_1" BOTH,
    "m=1 n=31 k=256 w=q4_k" BOTH,
    "m=5 n=16 k=256 w=q5_k" BOTH,
    "m=1 n=18 k=256 w=q6_k" BOTH,
    "m=7 n=48 k=544 w=q8_0" BOTH,
    "m=8 n=20 k=512 w=q6_k" BOTH,
    "m=9 n=32 k=768 w=q4_k" BOTH,
    "m=16 n=40 k=544 w=q4_0" BOTH,
    "m=17 n=50 k=1056 w=q5_0 bias=1" BOTH,
    "m=33 n=35 k=608 w=q4_1" BOTH,
    "m=31 n=32 k=1024 w=q6_k" BOTH,
    "m=34 n=16 k=256 w=q5_k" BOTH,
    "m=19 n=24 k=160 w=q5_1" BOTH,
    "m=64 n=112 k=96 w=q8_0" BOTH,
    "m=1 n=37 k=13 w=f32 bias=1" BOTH,
    "m=6 n=21 k=33 w=f16" BOTH,
    "m=13 n=19 k=259 w=bf16" BOTH,
    "m=40 n=47 k=301 w=f32" BOTH,
    "m=66 n=33 k=70 w=f16" BOTH,
    "m=18 n=64 k=130 w=bf16" BOTH,
    "m=3 n=33 k=64 w=q4_1 x_stride=70 y_stride=41 w_stride=3" BOTH,
    "m=21 n=33 k=64 w=q8_0 x_stride=70 y_stride=41" BOTH,
    "m=20 n=17 k=31 w=f16 x_stride=33 y_stride=40 w_stride=35" BOTH,
    "m=2 n=16 k=64 w=q4_0 x=f16 y=bf16" BOTH,
    "m=24 n=24 k=64 w=q8_0 x=bf16 y=f16 bias=1" BOTH,
    "m=5 n=20 k=40 w=bf16 x=bf16 y=bf16" BOTH,
    "m=1 n=40 n1=16 n2=24 k=256 w=q4_k w1=q5_0 w2=q8_0 bias=7" THREE,
    "m=20 n=40 n1=0 n2=23 k=256 w=q6_k w2=f16 bias=5 layouts=both layouts2=both",
    "m=9 n=17 n1=18 k=512 w=q5_k w1=q4_0 layouts=both layouts1=both",
    "m=3 n=48 k=512 w=q6_k numerics=exact" BOTH,
    "m=70 n=80 k=288 w=q4_1 numerics=exact bias=1" BOTH,
    "m=1 n=64 k=544 w=q5_0 numerics=exact" BOTH,
    "m=20 n=32 k=288 w=q8_0 numerics=invariant" BOTH,
    "m=1 n=576 n1=192 n2=192 k=576 w=q4_1 w1=q4_1 w2=q4_1" THREE, /* smollm2 */
    "m=17 n=1536 n1=1536 k=576 w=q4_1 w1=q4_1 layouts=both layouts1=both",
    "m=1 n=896 n1=128 n2=128 k=896 w=q5_0 w1=q5_0 w2=q8_0 bias=7" THREE, /* qwen2.5 0.5B */
    "m=1 n=896 k=4864 w=q6_k" BOTH,
    "m=1 n=640 k=2048 w=q4_k" BOTH, /* gemma3 270M */
    "m=2 n=1024 n1=256 n2=256 k=640 w=q5_0 w1=q5_0 w2=q8_0" THREE,
    "m=512 n=64 k=576 w=q4_1" BOTH,
    "m=1 n=200 k=136 w=bf16 x=bf16 y=bf16", /* what tensor cores take */
    "m=7 n=70 n1=20 n2=9 k=264 w=bf16 w1=bf16 w2=bf16 bias=5",
    "m=33 n=150 k=192 w=f16 x=f16 y=f32 bias=1 x_stride=200 y_stride=160",
    "m=64 n=72 k=1032 w=bf16 x=bf16 y=bf16",
    "m=130 n=264 k=72 w=bf16 x=bf16 y=bf16",
    "m=200 n=136 n1=8 n2=264 k=136 w=f16 w1=f16 w2=f16 x=f16 y=f16 bias=7 y_stride=416",
    "m=257 n=384 k=64 w=bf16 bias=1",
    "m=150 n=136 n1=8 n2=264 k=144 w=bf16 w1=bf16 w2=bf16 x=bf16 y=f32 bias=5 x_stride=152 "
    "y_stride=416",
    "m=3 n=64 k=4096 w=bf16 x=bf16 y=bf16 bias=1", /* few sums, long ones */
    "m=40 n=96 n1=8 k=75 w=f16 w1=f16 x=f16 y=f32 x_stride=88 y_stride=112 w_stride=80 "
    "w1_stride=96",
    NULL,
};
