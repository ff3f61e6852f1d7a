// Tiles whose elements become fp32 one vector at a time.  A format that is read this way is one K and one V struct with
// these members; ``AsFloat`` in attention.h makes kernels of them.
#pragma once

#include "tiles.h"

namespace kvasir::KVASIR_ISA {

// A tile to fetch while another is used: for each of head_dim channels the byte at ``at + channel * stride``.
struct Ahead {
  const char* at;
  int64_t stride;
};

// K of one sub-block, tile [D, B].
template <class T>
struct DenseK {
  const T* at;
  int64_t stride;

  INLINE DenseK(const HeadCache& cache, int64_t sub)
      : at((const T*)cache.a.k[0] + cache.tile(sub) * cache.a.head_dim * cache.a.block_size + cache.offset(sub)),
        stride(cache.a.block_size) {}
  // Channel ``d`` of the sixteen tokens.
  INLINE F16 column(int64_t d) const { return load(at + d * stride, Whole{}); }
  INLINE Ahead ahead() const { return {(const char*)at, stride * int64_t(sizeof(T))}; }
};

// V of one sub-block, tile [B, D].
template <class T>
struct DenseV {
  const T* at;
  int64_t dim;

  INLINE DenseV(const HeadCache& cache, int64_t sub)
      : at((const T*)cache.a.v[0] + (cache.tile(sub) * cache.a.block_size + cache.offset(sub)) * cache.a.head_dim),
        dim(cache.a.head_dim) {}
  // Sixteen channels (or the first of them) from ``channel`` on of token ``t``.
  template <class Part>
  INLINE F16 row(int64_t t, int64_t channel, Part part) const {
    return load(at + t * dim + channel, part);
  }
  // Asks for what ``row`` will read.
  INLINE void fetch(int64_t t, int64_t channel) const {
    if (channel * sizeof(T) % 64 == 0) __builtin_prefetch(at + t * dim + channel);
  }
  INLINE Ahead ahead() const { return {(const char*)at, LANES * int64_t(sizeof(T))}; }
};

}  // namespace kvasir::KVASIR_ISA
