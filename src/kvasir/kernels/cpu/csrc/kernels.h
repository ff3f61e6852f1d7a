// What the binding hands to the kernels: plain structs of pointers and sizes, and one table of functions per
// instruction set.  Shapes and letters are those of kernels/interface.py.
#pragma once

#include <cstdint>

namespace kvasir {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};
struct fp8 {  // e4m3: no infinity, NaN is 0x7f
  uint8_t bits;
};

enum class Dtype : int32_t { FP32, BF16, FP16, INT8, INT4, FP8 };

// The most tensors a format has for K or for V.
constexpr int MAX_TENSORS = 4;

// Calibrated constants of a store's heads, in store order; null for what there is not.  kernels/interface.py,
// ``HeadConstants``, says what each is.
struct Constants {
  const float* k_center;    // [heads, head_dim]
  const float* k_sink;      // [heads, head_dim]
  const float* k_feedback;  // [heads, head_dim, head_dim]
  const float* v_sink;      // [heads, head_dim]
  const float* k_scale;     // [heads]
  const float* v_scale;     // [heads]
};

// One per worker: memory that is kept between calls.  Each slot grows to the largest size asked for.
class Scratch {
 public:
  static constexpr int SLOTS = 10;
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch();
  // At least ``count`` floats, 64-byte aligned, contents undefined.
  float* floats(int slot, int64_t count);

 private:
  float* memory_[SLOTS] = {};
  int64_t size_[SLOTS] = {};
};

// Product [T, width]: int32 with scales, or fp32 without.
struct ProductView {
  const void* data;
  const float* row_scale;  // null: data is fp32
  const float* col_scale;
  const float* bias;  // null: none
  int64_t width;
};

// Where a finished row goes: codes and scale, or dense.
struct StyleView {
  float* dense;
  int8_t* codes;  // null: dense
  float* scale;
  int64_t rotation;  // 0: none
};

struct NormArgs {
  float* x;              // [T, width]; add_norm adds ``product`` to it first
  ProductView product;
  const float* weight;
  float eps;
  int64_t width;
  StyleView style;
};

struct RowsArgs {        // rotate_rows and swiglu_rows
  const float* x;
  ProductView product;
  int64_t width;         // of the finished row
  StyleView style;
};

struct KVTarget {
  void* k[MAX_TENSORS];  // of the format, in KVSpec's order
  void* v[MAX_TENSORS];
  Dtype k_dtype, v_dtype;
  const int32_t* heads;
  int64_t num_heads;     // in this store tensor
  int64_t block_size;
  const int64_t* slots;  // [T]
  Constants constants;
};

struct QkvArgs {
  ProductView product;
  int64_t num_heads, num_kv_heads, head_dim;
  const float* q_norm;   // null: no head norms
  const float* k_norm;
  float eps;
  const float* cos;      // [T, head_dim / 2]
  const float* sin;
  float* q;              // [T, num_heads, head_dim]
  const KVTarget* targets;
  int64_t num_targets;
};

// What a query sees, by its position alone: the sinks [0, sinks) and [oldest(position), position], causally.
struct Visibility {
  int64_t window;      // tokens; 0: everything
  int64_t sinks;       // 0 unless block_size is given
  int64_t block_size;  // 0: the window ends with the query itself; else it lies before the query's block

  int64_t oldest(int64_t position) const {
    if (window == 0) return 0;
    const int64_t first = block_size ? position / block_size * block_size - window : position - window + 1;
    return first > sinks ? first : sinks;
  }
};

constexpr int64_t SEGMENT = 512;  // tokens; boundaries are multiples of it, so they never depend on the step

// Floats from one query's scores to the next: a power of two would put all queries of a tile into two cache sets.
constexpr int64_t SCORE_STRIDE = SEGMENT + 16;

// Consecutive tokens of one row that are attended together.
struct QueryBlock {
  int32_t row;
  int32_t first_token;    // in the step
  int32_t num_tokens;
  int32_t first_position;
  int32_t first_segment;      // of what lies before the queries themselves
  int32_t num_sink_segments;  // pieces of the sinks, which come first; they are never attended with the rest
  int32_t num_segments;       // sinks included
  int64_t partials;       // index of its first partial result, -1 when one unit does all segments
};

// A piece of work for one KV head: one segment of a block, counted from its first (or all when ``segment`` is -1).
struct Unit {
  int32_t block;
  int32_t segment;
};

struct AttendArgs {
  const float* q;         // [T, num_heads, head_dim]
  float* out;
  const void* k[MAX_TENSORS];  // of the format, in KVSpec's order
  const void* v[MAX_TENSORS];
  Dtype k_dtype, v_dtype;
  const int32_t* heads;   // [num_store_heads]
  int64_t num_store_heads, num_heads, group, head_dim, block_size;
  Constants constants;
  const int32_t* table;   // [R, table_width]
  int64_t table_width;
  Visibility sees;
  float scale;
  const QueryBlock* blocks;
  const Unit* units;
  float* partials;        // [num_partials][num_store_heads][group][head_dim + 16 rounded up]
  int32_t* pending;       // [num blocks][num_store_heads]: segments still to finish
};

struct SelectArgs {
  const float* q;         // [R][num_heads][group][head_dim]
  int64_t group, head_dim, num_heads;
  const bf16* bounds;     // [blocks of the store][num_heads][2][head_dim]: the least of each channel, then the largest
  const int32_t* table;   // [R, table_width]
  int64_t table_width;
  const int32_t* num_blocks;  // [R], each more than ``limit``
  int64_t limit;          // at least 2
  int32_t* out;           // [R][num_heads][limit]: block * num_heads + head
};

// Sixteens of output channels that are handed out together; a multiple of what any set of registers takes at once.
constexpr int64_t LINEAR_GRAIN = 3;

struct PackArgs {
  const int8_t* codes;    // [num_columns, width]
  int64_t num_columns, width;
  uint8_t* packed;        // [num_columns / 16][width / 4][16][4], rounded up
};

struct LinearArgs {
  const int8_t* rows;     // [num_rows, row_stride], of which ``width`` count; zeros up to a multiple of four
  int64_t num_rows, row_stride, width;
  const uint8_t* weights; // packed, or as they came for multiply_unpacked
  int64_t num_columns;
  const int32_t* starts;  // [num_rows], of row_starts
  int32_t* out;           // [num_rows, num_columns]
};

struct Best {
  float value;            // NaN when one of the values is
  int32_t channel;
};

struct BestArgs {
  LinearArgs linear;
  const float* row_scale;
  const float* col_scale;
  const float* bias;      // null: none
  int64_t grain;          // sixteens of channels a piece
  Best* bests;            // [pieces, num_rows]
};

// Each function works on items [begin, end); what an item is stands behind it.
struct KernelTable {
  const char* name;
  void (*norm_rows)(const NormArgs&, int64_t begin, int64_t end, Scratch&);      // a row
  void (*add_norm_rows)(const NormArgs&, int64_t begin, int64_t end, Scratch&);  // a row
  void (*add_product)(const NormArgs&, int64_t begin, int64_t end, Scratch&);    // a row
  void (*rotate_rows)(const RowsArgs&, int64_t begin, int64_t end, Scratch&);    // a row
  void (*swiglu_rows)(const RowsArgs&, int64_t begin, int64_t end, Scratch&);    // a row
  void (*qkv_write)(const QkvArgs&, int64_t begin, int64_t end, Scratch&);       // a token
  void (*attend)(const AttendArgs&, int64_t begin, int64_t end, Scratch&);       // a (unit, store head)
  void (*select_blocks)(const SelectArgs&, int64_t begin, int64_t end, Scratch&);  // a (row, head)
  void (*pack_codes)(const PackArgs&, int64_t begin, int64_t end, Scratch&);     // sixteen channels
  void (*multiply)(const LinearArgs&, int64_t begin, int64_t end, Scratch&);     // sixteen channels
  void (*multiply_best)(const BestArgs&, int64_t begin, int64_t end, Scratch&);  // sixteen channels
  void (*multiply_unpacked)(const LinearArgs&, int64_t begin, int64_t end, Scratch&);  // sixteen channels
  void (*row_starts)(const LinearArgs&, int32_t* starts);
  void (*exponentials)(const float* x, float* exp2_out, float* exp_out, int64_t count);
  int64_t (*multiply_adds)(int64_t rounds, float* out);
};

const KernelTable* kernels_plain();
const KernelTable* kernels_avx2();
const KernelTable* kernels_avxvnni();
const KernelTable* kernels_avx512();
const KernelTable* kernels_avx512vnni();
const KernelTable* kernels_neon();
const KernelTable* kernels_neondot();

}  // namespace kvasir
