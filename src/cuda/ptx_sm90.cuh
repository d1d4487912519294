/*
 * One thin function per PTX instruction of Hopper, compute capability 9.0a; names and operands are the PTX ISA's. See its
 * sections on mbarrier, cp.async.bulk.tensor, wgmma and setmaxnreg for what they promise.
 */
#ifndef FATTN_CUDA_PTX_SM90_CUH
#define FATTN_CUDA_PTX_SM90_CUH

#include <cuda.h>

#include "cuda/ptx.cuh"

/* ------------------------------------------------------------------------------------------------------------ mbarrier */

__device__ __forceinline__ void ptx_mbarrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* After the block's barriers were made, before any other thread or TMA sees them. */
__device__ __forceinline__ void ptx_fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and lets the phase wait for this many bytes more. */
__device__ __forceinline__ void ptx_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Until the phase of this parity has ended; of a new barrier the one of parity 1 has. */
__device__ __forceinline__ void ptx_mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ------------------------------------------------------------------------------------------------------ named barriers */

/* Where ptx_bar_sync waits: comes, and does not wait. */
__device__ __forceinline__ void ptx_bar_arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* ptx_bar_sync; whether any of the threads said yes. */
__device__ __forceinline__ bool ptx_bar_or(int barrier, int threads, bool yes)
{
    uint32_t any;
    asm volatile("{\n"
                 ".reg .pred in, out;\n"
                 "setp.ne.u32 in, %3, 0;\n"
                 "bar.red.or.pred out, %1, %2, in;\n"
                 "selp.u32 %0, 1, 0, out;\n"
                 "}"
                 : "=r"(any)
                 : "r"(barrier), "r"(threads), "r"((uint32_t)yes)
                 : "memory");
    return any != 0;
}

/* ----------------------------------------------------------------------------------------------------------------- TMA */

/* The box at these coordinates, the first that of the dimension without a stride, into shared memory; its bytes count for the
 * barrier's phase, also those outside the tensor, which are zeros. */
__device__ __forceinline__ void ptx_tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2,
                                             int c3)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void ptx_tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2,
                                             int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
                 "%6}], [%7];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
                 : "memory");
}

/* The box from shared memory; what is outside the tensor is not written. */
__device__ __forceinline__ void ptx_tma_store(const CUtensorMap *map, uint32_t from, int c0, int c1, int c2, int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(c0),
                 "r"(c1), "r"(c2), "r"(c3), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void ptx_tma_store(const CUtensorMap *map, uint32_t from, int c0, int c1, int c2, int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void ptx_bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until at most `groups` of this thread's groups of stores are unfinished ... */
template <int groups> __device__ __forceinline__ void ptx_bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(groups) : "memory");
}

/* ... or have still to read shared memory. */
template <int groups> __device__ __forceinline__ void ptx_bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

/* `bytes` in a row, from global to shared memory; addresses and bytes are multiples of 16. */
__device__ __forceinline__ void ptx_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Likewise back: what was there is replaced, or floats are added to it. */
__device__ __forceinline__ void ptx_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void ptx_bulk_add(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

/* Between this thread's own stores to shared memory and TMA or wgmma that read it, after a barrier if other threads start them.
 */
__device__ __forceinline__ void ptx_fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ----------------------------------------------------------------------------------------------------- shared memory */

/* Four matrices of 8 x 8 numbers of 16 bits; lanes 8i .. 8i + 7 give the addresses of matrix i's rows. */
__device__ __forceinline__ void ptx_stmatrix_x4(uint32_t address, const uint32_t r[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ __forceinline__ void ptx_stmatrix_x4_trans(uint32_t address, const uint32_t r[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ------------------------------------------------------------------------------------------------------- global memory */

__device__ __forceinline__ int ptx_load_acquire(const int *from)
{
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ void ptx_store_release(int *to, int x)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/* Between ptx_bulk_... and other accesses of the same global memory, on either side of what orders them. */
__device__ __forceinline__ void ptx_fence_proxy_async_global(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ----------------------------------------------------------------------------------------------------------- registers */

/* The warpgroup's registers per thread from here on: a multiple of 8, at most 256. */
template <int registers> __device__ __forceinline__ void ptx_setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> __device__ __forceinline__ void ptx_setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* --------------------------------------------------------------------------------------------------------------- wgmma */

/* Before the first product, and after registers that one reads or adds to were written. */
__device__ __forceinline__ void ptx_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void ptx_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most `groups` of the warpgroup's groups of products are unfinished. */
template <int groups> __device__ __forceinline__ void ptx_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

/* Not an instruction: the compiler shall not move uses of d before the wait that stands before this. */
template <int n> __device__ __forceinline__ void ptx_wgmma_done(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptor of a factor in shared memory whose rows of 128 bytes are swizzled as TMA's 128-byte mode does, tiles at multiples
 * of 1024 bytes. `leading`: bytes between panels of 64 numbers where the rows are not along k (trans); else it does not count.
 */
__device__ __forceinline__ uint64_t ptx_wgmma_descriptor(uint32_t address, uint32_t leading)
{
    constexpr uint64_t swizzle_128 = 1ull << 62, rows_8 = (uint64_t)(1024 >> 4) << 32;
    return swizzle_128 | rows_8 | (uint64_t)(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

/* The same, `bytes` further on in the tile. The upper half stays a constant, which takes no registers. */
__device__ __forceinline__ uint64_t ptx_wgmma_further(uint64_t descriptor, int bytes)
{
    return (descriptor & 0xffffffff00000000) | ((uint32_t)descriptor + bytes / 16);
}

/* m64nNk16: d, N / 2 registers, (+)= a b. accumulate: 0 = d is set. a: a descriptor or four registers; trans_a, trans_b: 1 =
 * that factor's rows in shared memory are along k's other dimension. */
#define WGMMA_R0         "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_R1         WGMMA_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_R2         WGMMA_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_R3         WGMMA_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R4         WGMMA_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_R5         WGMMA_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R6         WGMMA_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_R7         WGMMA_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R8         WGMMA_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_R9         WGMMA_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R10        WGMMA_R9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_R11        WGMMA_R10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R12        WGMMA_R11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_R13        WGMMA_R12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_R14        WGMMA_R13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_R15        WGMMA_R14 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D(i)       "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(i)      WGMMA_D(8 * (i)), WGMMA_D(8 * (i) + 4)
#define WGMMA_D32(i)     WGMMA_D8(4 * (i)), WGMMA_D8(4 * (i) + 1), WGMMA_D8(4 * (i) + 2), WGMMA_D8(4 * (i) + 3)
#define WGMMA_OUT(...)   __VA_ARGS__
#define WGMMA_NAME(n, t) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." t "." t " "

/* For one N and one type: registers of d, the numbers of up to seven operands behind them. */
#define WGMMA(n, T, t, regs, out, o0, o1, o2, o3, o4, o5, o6)                                                                  \
    template <int accumulate, int trans_a = 0, int trans_b = 0>                                                                \
    __device__ __forceinline__ void ptx_wgmma(float(&d)[n / 2], uint64_t a, uint64_t b, T)                                     \
    {                                                                                                                          \
        asm volatile(WGMMA_NAME(n, t) "{" regs "}, %" #o0 ", %" #o1 ", %" #o2 ", 1, 1, %" #o3 ", %" #o4 ";"                    \
                     : WGMMA_OUT out                                                                                           \
                     : "l"(a), "l"(b), "n"(accumulate), "n"(trans_a), "n"(trans_b));                                           \
    }                                                                                                                          \
    template <int accumulate, int trans_b = 0>                                                                                 \
    __device__ __forceinline__ void ptx_wgmma(float(&d)[n / 2], const uint32_t *a, uint64_t b, T)                              \
    {                                                                                                                          \
        asm volatile(WGMMA_NAME(n, t) "{" regs "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", %" #o5 ", 1, 1, %" #o6  \
                                      ";"                                                                                      \
                     : WGMMA_OUT out                                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate), "n"(trans_b));                     \
    }
#define WGMMAS(n, ...)                                                                                                         \
    WGMMA(n, __nv_bfloat16, "bf16", __VA_ARGS__)                                                                               \
    WGMMA(n, __half, "f16", __VA_ARGS__)

WGMMAS(64, WGMMA_R3, (WGMMA_D32(0)), 32, 33, 34, 35, 36, 37, 38)
WGMMAS(80, WGMMA_R4, (WGMMA_D32(0), WGMMA_D8(4)), 40, 41, 42, 43, 44, 45, 46)
WGMMAS(128, WGMMA_R7, (WGMMA_D32(0), WGMMA_D32(1)), 64, 65, 66, 67, 68, 69, 70)
WGMMAS(256, WGMMA_R15, (WGMMA_D32(0), WGMMA_D32(1), WGMMA_D32(2), WGMMA_D32(3)), 128, 129, 130, 131, 132, 133, 134)

#endif
