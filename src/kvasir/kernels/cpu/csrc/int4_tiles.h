// The int4 tiles: two codes a byte, then bf16 scales and bf16 zero points per token and group; formats/int4.py says the
// same in Python.
#pragma once

#include "dense_tiles.h"
#include "dot.h"

namespace kvasir::KVASIR_ISA {

// How the channels of a head are grouped.
struct Int4Shape {
  int64_t dim, size;  // channels, tokens of a block
  int64_t group, num_groups;

  INLINE Int4Shape(int64_t head_dim, int64_t block_size)
      : dim(head_dim), size(block_size), group(head_dim % 64 ? 32 : 64), num_groups(head_dim / group) {}
  INLINE int64_t code_bytes() const { return dim / 2 * size; }
  INLINE int64_t tile_bytes() const { return code_bytes() + 4 * num_groups * size; }
  INLINE int64_t rotation() const {
    const int64_t power = dim & -dim;
    return power < 512 ? power : 512;
  }
};

// Scales and zero points of sixteen tokens; the next group's are ``size`` further on.
struct Int4Metadata {
  const bf16* scales;
  const bf16* zeros;
  int64_t size;

  INLINE Int4Metadata(const uint8_t* tile, const Int4Shape& shape, int64_t offset)
      : scales((const bf16*)(tile + shape.code_bytes()) + offset),
        zeros(scales + shape.num_groups * shape.size),
        size(shape.size) {}
  INLINE F16 scale(int64_t group) const {
    return as_float(as_int(load(scales + group * size, Whole{})) & splat(0x7fffffff));
  }
  INLINE F16 zero(int64_t group) const { return load(zeros + group * size, Whole{}); }
  // All ones in the lanes of tokens whose second centre was taken off: the sign of the first scale.
  INLINE I16 is_sink() const { return as_int(load(scales, Whole{})) >> 31; }
};

// K of one sub-block: [D / 8, B, 4], channels 8 i + c in low halves, 8 i + 4 + c in high ones.
struct Int4K {
  const uint8_t* at;
  Int4Metadata metadata;
  int64_t stride;  // from eight channels to the next eight

  INLINE Int4K(const HeadCache& cache, int64_t sub) : Int4K(cache, Int4Shape(cache.a.head_dim, cache.a.block_size), sub) {}
  INLINE Int4K(const HeadCache& cache, const Int4Shape& shape, int64_t sub) : Int4K(tile_of(cache, shape, sub), shape, cache.offset(sub)) {}
  INLINE Int4K(const uint8_t* tile, const Int4Shape& shape, int64_t offset)
      : at(tile + offset * 4), metadata(tile, shape, offset), stride(shape.size * 4) {}

  INLINE Ahead ahead() const { return {(const char*)at, stride / 8}; }

  static INLINE const uint8_t* tile_of(const HeadCache& cache, const Int4Shape& shape, int64_t sub) {
    return (const uint8_t*)cache.a.k[0] + cache.tile(sub) * shape.tile_bytes();
  }
};

// V of one sub-block: [B / 4, D / 32, 16, 4], channels 32 m + l in low halves, 32 m + 16 + l in high ones.
struct Int4V {
  const uint8_t* at;
  Int4Metadata metadata;

  INLINE Int4V(const HeadCache& cache, const Int4Shape& shape, int64_t sub) : Int4V(tile_of(cache, shape, sub), shape, cache.offset(sub)) {}
  INLINE Int4V(const uint8_t* tile, const Int4Shape& shape, int64_t offset)
      : at(tile + offset / 4 * shape.dim * 2), metadata(tile, shape, offset) {}

  INLINE Ahead ahead() const { return {(const char*)at, LANES / 2}; }

  static INLINE const uint8_t* tile_of(const HeadCache& cache, const Int4Shape& shape, int64_t sub) {
    return (const uint8_t*)cache.a.v[0] + cache.tile(sub) * shape.tile_bytes();
  }
};

// Sixty-four bytes of two codes each.
struct Nibbles {
  B16 low, high;
};
INLINE Nibbles load_nibbles(const void* p) {
  const B16 bytes = load_bytes(p);
  typedef int16_t native_s __attribute__((vector_size(NATIVE * 4)));
  Nibbles n;
  EACH_PART {
    n.low.part[i] = bytes.part[i] & 15;
    n.high.part[i] = (native_b)((native_s)bytes.part[i] >> 4) & 15;
  }
  return n;
}

}  // namespace kvasir::KVASIR_ISA
