/*
 * Tiles of Hopper's kernels in shared memory, and how a warp fills one where TMA cannot.
 */
#ifndef FATTN_CUDA_HOPPER_TILES_CUH
#define FATTN_CUDA_HOPPER_TILES_CUH

#include "cuda/ptx_sm90.cuh"
#include "cuda/tensor.cuh"

constexpr unsigned ALL = 0xffffffffu;
constexpr int PANEL = 64; /* columns of 128 bytes, the unit of swizzling */

/* Byte of piece c of row r in a tile of `rows` rows, panel after panel. */
template <int rows> __device__ __forceinline__ uint32_t panel_piece(int r, int c)
{
    return (uint32_t)(c / 8 * rows * 128 + r * 128 + ((c % 8 ^ (r & 7)) << 4));
}

/* A tile of `rows` rows of 16-bit numbers by a warp's own loads, as TMA would put them: row(r) is an address, or NULL: zeros.
 * Pieces that do not begin at a multiple of 16 bytes or end behind the last column go number by number. */
template <int rows, int dim, class Row> __device__ __forceinline__ void load_plain(unsigned char *tile, int columns, Row row)
{
    constexpr int pieces = dim / PIECE;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < rows * pieces; i += 32) {
        const int r = i / pieces, c = i % pieces;
        const uint16_t *from = (const uint16_t *)row(r) + c * PIECE;
        unsigned char *piece = tile + panel_piece<rows>(r, c);
        const int count = row(r) ? columns - c * PIECE : 0;
        if (count <= 0)
            *(uint4 *)piece = make_uint4(0, 0, 0, 0);
        else if (count >= PIECE && (uintptr_t)from % 16 == 0)
            ptx_cp_async_16(ptx_shared_address(piece), from, true);
        else
            for (int e = 0; e < PIECE; e++)
                ((uint16_t *)piece)[e] = e < count ? from[e] : 0;
    }
    ptx_cp_async_commit();
    ptx_cp_async_wait<0>();
    ptx_fence_proxy_async();
    __syncwarp();
}

#endif
