/* shim.h: what of PyTorch this adapter uses, which is its C shim alone: declared here, found by name in
 * the libraries that the process has open. So nothing of PyTorch is needed to build it, and one binary
 * serves every version that has these functions (2.10 and newer). */
#ifndef SOP_TORCH_SHIM_H
#define SOP_TORCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

typedef void *sop_handle;   /* AtenTensorHandle: owned by who holds it */
typedef uint64_t sop_value; /* StableIValue */
typedef void sop_kernel(sop_value *stack, uint64_t n_in, uint64_t n_out);

/* X(name of the field, name in PyTorch, result, parameters); 0 is success where it is int32_t. */
#define SOP_SHIM_MAP(X) \
    X(library_impl, "aoti_torch_library_init_impl", int32_t, \
      (const char *space, const char *key, const char *file, uint32_t line, void **out)) \
    X(impl, "torch_library_impl", int32_t, \
      (void *library, const char *name, sop_kernel *fn, uint64_t version)) \
    X(data, "aoti_torch_get_data_ptr", int32_t, (sop_handle, void **)) \
    X(ndim, "aoti_torch_get_dim", int32_t, (sop_handle, int64_t *)) \
    X(sizes, "aoti_torch_get_sizes", int32_t, (sop_handle, int64_t **)) \
    X(strides, "aoti_torch_get_strides", int32_t, (sop_handle, int64_t **)) \
    X(dtype, "aoti_torch_get_dtype", int32_t, (sop_handle, int32_t *)) \
    X(device_type, "aoti_torch_get_device_type", int32_t, (sop_handle, int32_t *)) \
    X(device_index, "aoti_torch_get_device_index", int32_t, (sop_handle, int32_t *)) \
    X(empty, "aoti_torch_empty_strided", int32_t, \
      (int64_t n, const int64_t *size, const int64_t *stride, int32_t dtype, int32_t device_type, \
       int32_t device_index, sop_handle *out)) \
    X(copy, "aoti_torch_copy_", int32_t, (sop_handle to, sop_handle from, int32_t no_wait)) \
    X(drop, "aoti_torch_delete_tensor_object", int32_t, (sop_handle)) \
    X(check, "aoti_torch_check", void, \
      (bool right, const char *function, const char *file, uint32_t line, const char *message)) \
    X(parallel_for, "torch_parallel_for", int32_t, \
      (int64_t begin, int64_t end, int64_t grain, \
       void (*fn)(int64_t begin, int64_t end, void *ctx), void *ctx)) \
    X(threads, "torch_get_num_threads", int32_t, (uint32_t *)) \
    X(cpu, "aoti_torch_device_type_cpu", int32_t, (void)) \
    X(cuda, "aoti_torch_device_type_cuda", int32_t, (void)) \
    X(f32, "aoti_torch_dtype_float32", int32_t, (void)) \
    X(f64, "aoti_torch_dtype_float64", int32_t, (void)) \
    X(f16, "aoti_torch_dtype_float16", int32_t, (void)) \
    X(bf16, "aoti_torch_dtype_bfloat16", int32_t, (void)) \
    X(f8, "aoti_torch_dtype_float8_e4m3fn", int32_t, (void)) \
    X(i8, "aoti_torch_dtype_int8", int32_t, (void)) \
    X(u8, "aoti_torch_dtype_uint8", int32_t, (void)) \
    X(i32, "aoti_torch_dtype_int32", int32_t, (void)) \
    X(i64, "aoti_torch_dtype_int64", int32_t, (void)) \
    X(bool8, "aoti_torch_dtype_bool", int32_t, (void))

/* In libtorch_cuda; NULL in a build of PyTorch without CUDA. */
#define SOP_SHIM_CUDA_MAP(X) \
    X(stream, "aoti_torch_get_current_cuda_stream", int32_t, (int32_t index, void **out)) \
    X(guard, "aoti_torch_create_cuda_guard", int32_t, (int32_t index, void **out)) \
    X(unguard, "aoti_torch_delete_cuda_guard", int32_t, (void *guard))

struct sop_shim {
#define X(field, name, result, parameters) result(*field) parameters;
    SOP_SHIM_MAP(X)
    SOP_SHIM_CUDA_MAP(X)
#undef X
    void (*drop_value)(void *value); /* of an optional argument: it came from C++'s new */
};
extern struct sop_shim sop_shim;

/* Fill sop_shim; NULL, or the name of what is missing. */
const char *sop_shim_load(void);

#endif
