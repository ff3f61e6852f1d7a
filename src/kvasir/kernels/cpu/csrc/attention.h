// Paged attention: units of work, 512-token segments, and their merge in order.
//
// A query's scores over one segment become weights relative to that segment's largest score; segments are merged
// oldest first.  The segment boundaries are absolute positions, so a query's arithmetic depends on its position alone.
#pragma once

#include "int4_attention.h"

namespace kvasir::KVASIR_ISA {

constexpr float LOG2E = 1.44269504f;

// Attention of some rows over some tokens: weights are 2^(score - largest), o is not yet divided by their sum.
// A row with sum 0 has seen nothing.
struct Partial {
  float* largest;  // [rows]
  float* sum;      // [rows]
  float* o;        // [rows][stride]

  static INLINE int64_t floats(int64_t rows, int64_t stride) { return rows * (stride + 2); }
  static INLINE Partial at(float* memory, int64_t rows, int64_t stride) {
    return {memory + rows * stride, memory + rows * stride + rows, memory};
  }
};

inline void merge(const Partial& into, const Partial& newer, int64_t rows, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    float *o = into.o + r * stride, *added = newer.o + r * stride;
    if (newer.sum[r] == 0.0f) continue;
    if (into.sum[r] == 0.0f) {
      into.largest[r] = newer.largest[r];
      into.sum[r] = newer.sum[r];
      memcpy(o, added, stride * sizeof(float));
      continue;
    }
    const float top = newer.largest[r] > into.largest[r] ? newer.largest[r] : into.largest[r];
    const F16 old_factor = exp2_nonpositive(splat(into.largest[r] - top));
    const F16 new_factor = exp2_nonpositive(splat(newer.largest[r] - top));
    into.largest[r] = top;
    into.sum[r] = fma(splat(newer.sum[r]), new_factor, splat(into.sum[r]) * old_factor).part[0][0];
    for (int64_t i = 0; i < stride; i += LANES) {
      store(o + i, fma(load(added + i, Whole{}), new_factor, load(o + i, Whole{}) * old_factor), Whole{});
    }
  }
}

// A K format writes scores, a V format turns them into weighted sums; what lies between is [row][SCORE_STRIDE] floats.
// So each pair of formats works, and a new one is one struct here:
//   prepare(work, q)                       queries as the format wants them, once for all segments
//   scores(work, range, v_ahead, scores)   masked; see TileRange for which sub-blocks must be written
//   factors(work)                          per row, what makes them scores to base 2; null: they are already
//   outputs(work, range, scores, out)      softmax and P . V; may use up ``scores``
//   ahead(cache, sub)                      where V lies
struct BlockInput {
  const AttendArgs& a;
  const QueryBlock& block;
  HeadCache cache;
  QueryRows rows;     // of the segment at hand
  int64_t stride;     // of a row of o
  bool is_direct;     // one token: straight from the store
  Scratch& scratch;
  float* q;              // as the K format wants it
  const float* factors;  // of its scores

  // The head's share of constants [heads, head_dim]; null where there are none.
  INLINE const float* of_head(const float* constants) const {
    return constants ? constants + cache.index * a.head_dim : nullptr;
  }
  template <class T>
  INLINE T* query(T* tensor, int64_t row) const {
    const int64_t token = block.first_token + row / a.group;
    const int64_t head = a.heads[cache.index] * a.group + row % a.group;
    return tensor + (token * a.num_heads + head) * a.head_dim;
  }
};

enum ScratchSlot { QUERIES = 1, SCORES, CHUNK, RESULT, NEWER, CODES, V_SCALES, V_SINK };

template <class K>
struct FloatScores {
  static void prepare(BlockInput& work) {
    const int64_t dim = work.a.head_dim;
    const float scale = work.a.scale * LOG2E * (work.a.k_dtype == Dtype::FP8 ? work.a.constants.k_scale[work.cache.index] : 1.0f);
    work.q = work.scratch.floats(QUERIES, (work.rows.count + TILE_ROWS) * dim);
    for (int64_t r = 0; r < work.rows.count; ++r) {
      const float* from = work.query(work.a.q, r);
      if (work.is_direct) {
        for (int64_t d = 0; d < dim; ++d) work.q[r * dim + d] = from[d] * scale;
      } else {
        float* tile = work.q + r / TILE_ROWS * TILE_ROWS * dim + r % TILE_ROWS;
        for (int64_t d = 0; d < dim; ++d) tile[d * TILE_ROWS] = from[d] * scale;
      }
    }
  }
  static const float* factors(const BlockInput&) { return nullptr; }
  static void scores(const BlockInput& work, const SegmentRange& range, VAhead v_ahead, float* scores) {
    if (work.is_direct) {
      with_direct_rows(work.rows.count, [&](auto count) {
        direct_segment_scores<K, decltype(count)::COUNT>(work.cache, work.q, range.low, range.high, v_ahead, scores);
      });
      return;
    }
    float* chunk = work.scratch.floats(CHUNK, CHUNK_SUBS * LANES * work.stride);
    block_scores<K>(work.cache, work.rows, range, work.q, chunk, scores);
  }
};

template <class V>
struct FloatValues {
  static Ahead ahead(const HeadCache& cache, int64_t sub) { return V(cache, sub).ahead(); }
  static void outputs(const BlockInput& work, const SegmentRange& range, float* scores, const Partial& out) {
    block_softmax(work.rows, range, scores, work.factors, out.largest, out.sum);
    if (work.is_direct) {
      with_direct_rows(work.rows.count, [&](auto count) {
        direct_outputs<V, decltype(count)::COUNT>(work.cache, scores, range.low, range.high, out.o, work.stride);
      });
      return;
    }
    float* chunk = work.scratch.floats(CHUNK, CHUNK_SUBS * LANES * work.stride);
    block_values<V>(work.cache, work.rows, range, scores, chunk, out.o);
  }
};

struct Int8Scores {
  static void prepare(BlockInput& work) {
    const int64_t dim = work.a.head_dim, rows = work.rows.count;
    work.q = work.scratch.floats(QUERIES, CodedQueries::floats(rows, dim));
    float* buffer = work.scratch.floats(CHUNK, 2 * padded(dim));
    const CodedQueries q = CodedQueries::at(work.q, rows, dim);
    for (int64_t r = 0; r < rows; ++r) q.set(r, work.query(work.a.q, r), dim, work.a.scale * LOG2E, buffer);
  }
  static const float* factors(const BlockInput& work) {
    return CodedQueries::at(work.q, work.rows.count, work.a.head_dim).factor;
  }
  static void scores(const BlockInput& work, const SegmentRange& range, VAhead v_ahead, float* scores) {
    const CodedQueries q = CodedQueries::at(work.q, work.rows.count, work.a.head_dim);
    if (work.is_direct) return coded_scores<true>(work.cache, work.rows, range, q, v_ahead, scores);
    coded_scores<false>(work.cache, work.rows, range, q, v_ahead, scores);
  }
};

struct Int8Values {
  static Ahead ahead(const HeadCache& cache, int64_t sub) { return Int8V(cache, sub).ahead(); }
  static void outputs(const BlockInput& work, const SegmentRange& range, float* scores, const Partial& out) {
    const VScales v_scales = VScales::at(work.scratch.floats(V_SCALES, VScales::FLOATS));
    const SegmentTiles<Int8V> tiles(work.cache, range);
    const int64_t first = range.low / LANES, last = (range.high + LANES - 1) / LANES;
    for (int64_t sub = first; sub < last; ++sub) {
      store(v_scales.own + (sub * LANES - range.start), load(tiles.from(sub)->scales, Whole{}), Whole{});
    }
    v_scales.make_ready(first - tiles.start, last - tiles.start);
    const int64_t rows = work.rows.count, dim = work.a.head_dim;
    const CodedWeights weights = CodedWeights::at(work.scratch.floats(CODES, CodedWeights::floats(rows)), rows);
    coded_softmax(work.rows, range, scores, work.factors, v_scales, weights, out.largest, out.sum);
    if (work.is_direct) return coded_values<true>(tiles, work.rows, range, weights, dim, work.stride, out.o);
    coded_values<false>(tiles, work.rows, range, weights, dim, work.stride, out.o);
  }
};

struct Int4Scores {
  static void prepare(BlockInput& work) {
    const Int4Shape shape(work.a.head_dim, work.a.block_size);
    const int64_t rows = work.rows.count;
    work.q = work.scratch.floats(QUERIES, Int4Queries::floats(rows, shape));
    float* buffer = work.scratch.floats(CHUNK, 2 * shape.dim);
    const Int4Queries q = Int4Queries::at(work.q, rows, shape);
    const float *center = work.of_head(work.a.constants.k_center), *sink = work.of_head(work.a.constants.k_sink);
    for (int64_t r = 0; r < rows; ++r) q.set(r, work.query(work.a.q, r), shape, center, sink, work.a.scale * LOG2E, buffer);
  }
  // They are in the scores already, where second centres have to be added to what they belong to.
  static const float* factors(const BlockInput&) { return nullptr; }
  static void scores(const BlockInput& work, const SegmentRange& range, VAhead v_ahead, float* scores) {
    const Int4Shape shape(work.a.head_dim, work.a.block_size);
    const Int4Queries q = Int4Queries::at(work.q, work.rows.count, shape);
    if (work.is_direct) return int4_scores<true>(work.cache, shape, work.rows, range, q, v_ahead, scores);
    int4_scores<false>(work.cache, shape, work.rows, range, q, v_ahead, scores);
  }
};

// Sums come out rotated; ``write`` turns them back, once for all segments.
struct Int4Values {
  static Ahead ahead(const HeadCache& cache, int64_t sub) {
    return Int4V(cache, Int4Shape(cache.a.head_dim, cache.a.block_size), sub).ahead();
  }
  static void outputs(const BlockInput& work, const SegmentRange& range, float* scores, const Partial& out) {
    const Int4Shape shape(work.a.head_dim, work.a.block_size);
    const int64_t rows = work.rows.count;
    const Int4Tokens tokens(work.scratch.floats(V_SCALES, Int4Tokens::floats(shape)), work.cache, shape, range);
    const Int4Weights weights(work.scratch.floats(CODES, Int4Weights::floats(rows, shape)), rows, shape);
    int4_softmax(work.rows, range, shape, scores, work.factors, tokens, weights, out.largest, out.sum);
    float* sink = nullptr;
    if (const float* center = work.of_head(work.a.constants.v_sink)) {
      sink = work.scratch.floats(V_SINK, shape.dim);
      memcpy(sink, center, shape.dim * sizeof(float));
      rotate(sink, shape.dim, shape.rotation());
    }
    if (work.is_direct) return int4_values<true>(work.cache, shape, work.rows, range, weights, sink, out.o);
    int4_values<false>(work.cache, shape, work.rows, range, weights, sink, out.o);
  }
};

// Calls body with the kernels of a K format.
template <class Body>
INLINE void with_k_format(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::FP32: return body(FloatScores<DenseK<float>>{});
    case Dtype::BF16: return body(FloatScores<DenseK<bf16>>{});
    case Dtype::FP16: return body(FloatScores<DenseK<fp16>>{});
    case Dtype::INT8: return body(Int8Scores{});
    case Dtype::INT4: return body(Int4Scores{});
    case Dtype::FP8: return body(FloatScores<DenseK<fp8>>{});
  }
}

template <class Body>
INLINE void with_v_format(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::FP32: return body(FloatValues<DenseV<float>>{});
    case Dtype::BF16: return body(FloatValues<DenseV<bf16>>{});
    case Dtype::FP16: return body(FloatValues<DenseV<fp16>>{});
    case Dtype::INT8: return body(Int8Values{});
    case Dtype::INT4: return body(Int4Values{});
    case Dtype::FP8: return body(FloatValues<DenseV<fp8>>{});
  }
}

struct BlockWork : BlockInput {
  BlockWork(const AttendArgs& args, const QueryBlock& query_block, int64_t index, Scratch& memory)
      : BlockInput{args,
                   query_block,
                   {args, args.table + query_block.row * args.table_width, index},
                   {query_block.first_position, query_block.num_tokens * args.group, args.group, args.sees},
                   (args.head_dim + LANES - 1) / LANES * LANES,
                   query_block.num_tokens == 1 && args.group <= MAX_DIRECT_ROWS,
                   memory,
                   nullptr,
                   nullptr} {
    with_k_format(a.k_dtype, [&](auto format) {
      format.prepare(*this);
      factors = format.factors(*this);
    });
  }

  // Turns to the block's ``segment``: which of its tokens some row sees, and from now on ``rows`` says what each sees.
  // Sinks and what lies behind them are never one range, even where they touch, so that a query's sums do not depend
  // on the other queries of its block.
  SegmentRange turn_to(int64_t segment) {
    const bool is_sinks = segment < block.num_sink_segments;
    rows.sees = is_sinks ? Visibility{} : a.sees;
    const int64_t start =
        (is_sinks ? segment : block.first_segment + segment - block.num_sink_segments) * SEGMENT;
    const int64_t end = is_sinks ? smaller(start + SEGMENT, a.sees.sinks) : start + SEGMENT;
    return {start, larger(start, rows.low(0)), smaller(end, rows.high(rows.count - 1))};
  }

  void attend(int64_t segment, const Partial& out) {
    const SegmentRange range = turn_to(segment);
    float* scores = scratch.floats(SCORES, rows.count * SCORE_STRIDE);
    VAhead v_ahead = nullptr;
    with_v_format(a.v_dtype, [&](auto format) { v_ahead = format.ahead; });
    with_k_format(a.k_dtype, [&](auto format) { format.scores(*this, range, v_ahead, scores); });
    with_v_format(a.v_dtype, [&](auto format) { format.outputs(*this, range, scores, out); });
  }

  void write(const Partial& result) const {
    const F16 unit = splat(a.v_dtype == Dtype::FP8 ? a.constants.v_scale[cache.index] : 1.0f);
    for (int64_t r = 0; r < rows.count; ++r) {
      const F16 sum = splat(result.sum[r]);
      float* out = query(a.out, r);
      for_lanes(a.head_dim, [&](int64_t i, auto part) {
        store(out + i, load(result.o + r * stride + i, Whole{}) / sum * unit, part);
      });
      if (a.v_dtype == Dtype::INT4) rotate(out, a.head_dim, Int4Shape(a.head_dim, a.block_size).rotation());
    }
  }

  void attend_all() {
    const int64_t size = Partial::floats(rows.count, stride);
    const Partial result = Partial::at(scratch.floats(RESULT, size), rows.count, stride);
    const Partial newer = Partial::at(scratch.floats(NEWER, size), rows.count, stride);
    attend(0, result);
    for (int64_t n = 1; n < block.num_segments; ++n) {
      attend(n, newer);
      merge(result, newer, rows.count, stride);
    }
    write(result);
  }

  // One segment; whoever finishes a block's last one merges them all.
  void attend_part(int64_t segment, int32_t* pending) {
    const int64_t size = Partial::floats(rows.count, stride);
    float* memory = a.partials + (block.partials * a.num_store_heads + cache.index * block.num_segments * rows.count) *
                                     (stride + 2);
    attend(segment, Partial::at(memory + segment * size, rows.count, stride));
    if (__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) != 0) return;
    const Partial result = Partial::at(memory, rows.count, stride);
    for (int64_t n = 1; n < block.num_segments; ++n) {
      merge(result, Partial::at(memory + n * size, rows.count, stride), rows.count, stride);
    }
    write(result);
  }
};

inline void attend(const AttendArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  for (int64_t item = begin; item < end; ++item) {
    const Unit& unit = a.units[item / a.num_store_heads];
    const int64_t index = item % a.num_store_heads;
    BlockWork work(a, a.blocks[unit.block], index, scratch);
    if (unit.segment < 0) {
      work.attend_all();
    } else {
      work.attend_part(unit.segment, a.pending + unit.block * a.num_store_heads + index);
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
