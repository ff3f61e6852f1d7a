// The int8 tiles: codes interleaved by four, then one fp32 scale per token; formats/int8.py says the same in Python.
#pragma once

#include "dense_tiles.h"
#include "dot.h"
#include "rows.h"

namespace kvasir::KVASIR_ISA {

INLINE int64_t int8_tile_bytes(int64_t head_dim, int64_t block_size) { return (head_dim + 4) * block_size; }

// K of one sub-block: [D / 4, B, 4] as code + 128, then scales [B].
struct Int8K {
  const uint8_t* at;
  const float* scales;
  int64_t stride;  // from four channels to the next four

  Int8K() = default;
  INLINE Int8K(const HeadCache& cache, int64_t sub) {
    const int64_t dim = cache.a.head_dim, size = cache.a.block_size, offset = cache.offset(sub);
    const uint8_t* tile = (const uint8_t*)cache.a.k[0] + cache.tile(sub) * int8_tile_bytes(dim, size);
    at = tile + offset * 4;
    scales = (const float*)(tile + dim * size) + offset;
    stride = size * 4;
  }
  INLINE Ahead ahead() const { return {(const char*)at, stride / 4}; }
};

// V of one sub-block: [B / 4, D, 4], then scales [B].
struct Int8V {
  const int8_t* at;
  const float* scales;

  Int8V() = default;
  INLINE Int8V(const HeadCache& cache, int64_t sub) {
    const int64_t dim = cache.a.head_dim, size = cache.a.block_size, offset = cache.offset(sub);
    const int8_t* tile = (const int8_t*)cache.a.v[0] + cache.tile(sub) * int8_tile_bytes(dim, size);
    at = tile + offset * dim;
    scales = (const float*)(tile + dim * size) + offset;
  }
  INLINE Ahead ahead() const { return {(const char*)at, LANES}; }
};

inline void write_int8_k(void* tensor, int64_t tile_index, int64_t offset, int64_t size, int64_t dim, int8_t* codes,
                         const float* head) {
  uint8_t* tile = (uint8_t*)tensor + tile_index * int8_tile_bytes(dim, size);
  quantise(head, dim, codes, (float*)(tile + dim * size) + offset);
  for (int64_t d = 0; d < dim; d += 4) {
    uint32_t four;
    memcpy(&four, codes + d, 4);
    four ^= 0x80808080u;
    memcpy(tile + d * size + offset * 4, &four, 4);
  }
}

inline void write_int8_v(void* tensor, int64_t tile_index, int64_t offset, int64_t size, int64_t dim, int8_t* codes,
                         const float* head) {
  int8_t* tile = (int8_t*)tensor + tile_index * int8_tile_bytes(dim, size);
  quantise(head, dim, codes, (float*)(tile + dim * size) + offset);
  int8_t* at = tile + offset / 4 * 4 * dim + offset % 4;
  for (int64_t d = 0; d < dim; ++d) at[d * 4] = codes[d];
}

}  // namespace kvasir::KVASIR_ISA
