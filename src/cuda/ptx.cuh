/*
 * One thin function per PTX instruction that C++ has no word for; names and operands are the PTX ISA's.
 */
#ifndef FATTN_CUDA_PTX_CUH
#define FATTN_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t ptx_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory, asynchronously; zeros if not `there`. Both addresses are multiples of 16. */
__device__ __forceinline__ void ptx_cp_async_16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* Likewise 8 bytes. */
__device__ __forceinline__ void ptx_cp_async_8(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0) : "memory");
}

/* Likewise 4 bytes. */
__device__ __forceinline__ void ptx_cp_async_4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ __forceinline__ void ptx_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `groups` of this thread's groups are on their way. */
template <int groups> __device__ __forceinline__ void ptx_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/* Of kernels that may begin early (cuda_launch_early): waits until those before have ended and what they wrote is there. */
__device__ __forceinline__ void ptx_wait_for_grids_before(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next begin, up to its wait, once every block has come here. */
__device__ __forceinline__ void ptx_let_grids_after_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Four matrices of 8 x 8 numbers of 16 bits; lanes 8i .. 8i + 7 give the addresses of matrix i's rows. */
__device__ __forceinline__ void ptx_ldmatrix_x4(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void ptx_ldmatrix_x4_trans(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* d += a b, m16n8k16. */
__device__ __forceinline__ void ptx_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __half)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ptx_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d += a b, m16n8k8 of TF32. */
__device__ __forceinline__ void ptx_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* x rounded to TF32: 10 bits behind the point. */
__device__ __forceinline__ uint32_t ptx_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void ptx_store_shared(uint32_t to, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/* Waits until `threads` threads of the block, whole warps that come together, have come to this barrier, 1 .. 15; 0 is
 * __syncthreads's. */
__device__ __forceinline__ void ptx_bar_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Adds four numbers to four in global memory, each by itself, in no order that another thread could tell. */
__device__ __forceinline__ void ptx_red_add(float *to, const float x[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
#else
    for (int i = 0; i < 4; i++)
        asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + i), "f"(x[i]) : "memory");
#endif
}

/* a - b of two bfloat16 each. */
__device__ __forceinline__ uint32_t ptx_subtract_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return r;
}

/* 2^x with 2 ulp; subnormal results are 0. */
__device__ __forceinline__ float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers as one register, the first in the low half. */
__device__ __forceinline__ uint32_t ptx_pack(float low, float high, __half)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ uint32_t ptx_pack(float low, float high, __nv_bfloat16)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

#endif
