// Runs one attention step and one row kernel of the NEON build on inputs from a file; test_neon.py compares the outputs.
//
// In:  11 int64 (rows, tokens, table width, block size, window, sinks, block size of the window, query heads, KV heads,
//      head size, blocks), K/V dtype, row length, bytes of K and of V; query_start, first_position, table (int32),
//      q (fp32), K, V (as stored), gate-and-up rows (fp32), the heads' constants in their order (fp32), slots (int64),
//      q/k/v products (fp32).
// Out: attention output (fp32), SwiGLU codes (int8), their scales (fp32), K and V written from the products.
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels.h"
#include "work_list.h"

using namespace kvasir;

template <class T>
static std::vector<T> read(FILE* file, int64_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, file) != size_t(count)) throw std::runtime_error("input too short");
  return values;
}

int main(int, char** argv) {
  FILE* in = std::fopen(argv[1], "rb");
  const std::vector<int64_t> n = read<int64_t>(in, 14);
  const int64_t rows = n[0], tokens = n[1], width = n[2], size = n[3], heads = n[7], kv_heads = n[8], dim = n[9];
  const Dtype dtype = Dtype(n[11]);
  const auto query_start = read<int32_t>(in, rows + 1), first = read<int32_t>(in, rows);
  const auto table = read<int32_t>(in, rows * width);
  const auto q = read<float>(in, tokens * heads * dim);
  const auto k = read<char>(in, n[13]), v = read<char>(in, n[13]);
  const int64_t length = n[12];
  const auto gate_up = read<float>(in, tokens * 2 * length);
  const auto vectors = [&](int64_t of_each) { return read<float>(in, kv_heads * of_each); };
  const auto k_center = vectors(dim), k_sink = vectors(dim), k_feedback = vectors(dim * dim), v_sink = vectors(dim);
  const auto k_scale = vectors(1), v_scale = vectors(1);
  const Constants constants{k_center.data(), k_sink.data(), k_feedback.data(), v_sink.data(), k_scale.data(), v_scale.data()};
  const auto slots = read<int64_t>(in, tokens);
  const auto product = read<float>(in, tokens * (heads + 2 * kv_heads) * dim);
  std::fclose(in);

  #define TABLE_OF(isa) kernels_##isa()
#define TABLE(isa) TABLE_OF(isa)
  const KernelTable* kernels = TABLE(KVASIR_ISA);
  Scratch scratch;
  std::vector<float> out(q.size()), scale(tokens);
  std::vector<int8_t> codes(tokens * length);
  std::vector<int32_t> all_heads(kv_heads);
  std::iota(all_heads.begin(), all_heads.end(), 0);
  WorkList work({rows, tokens, width, size, {n[4], n[5], n[6]}, heads / kv_heads, kv_heads, n[10], 1},
                query_start.data(), first.data(), table.data());
  AttendArgs attend{};
  attend.q = q.data();
  attend.out = out.data();
  attend.k[0] = k.data();
  attend.v[0] = v.data();
  attend.k_dtype = attend.v_dtype = dtype;
  attend.heads = all_heads.data();
  attend.num_store_heads = kv_heads;
  attend.num_heads = heads;
  attend.head_dim = dim;
  attend.scale = 0.125f;
  attend.constants = constants;
  work.prepare(attend, kv_heads, dim);
  kernels->attend(attend, 0, work.num_units() * kv_heads, scratch);

  const RowsArgs swiglu{nullptr, {gate_up.data(), nullptr, nullptr, nullptr, 2 * length}, length,
                        {nullptr, codes.data(), scale.data(), 64}};
  kernels->swiglu_rows(swiglu, 0, tokens, scratch);

  std::vector<char> new_k(k.size()), new_v(v.size());
  const std::vector<float> cos(tokens * dim / 2, 1.0f), sin(tokens * dim / 2, 0.0f);
  std::vector<float> new_q(q.size());
  const KVTarget target{{new_k.data()}, {new_v.data()}, dtype, dtype, all_heads.data(), kv_heads, size, slots.data(), constants};
  const QkvArgs write{{product.data(), nullptr, nullptr, nullptr, (heads + 2 * kv_heads) * dim}, heads, kv_heads, dim, nullptr, nullptr, 0.0f,
                      cos.data(), sin.data(), new_q.data(), &target, 1};
  kernels->qkv_write(write, 0, tokens, scratch);

  FILE* result = std::fopen(argv[2], "wb");
  std::fwrite(out.data(), 4, out.size(), result);
  std::fwrite(codes.data(), 1, codes.size(), result);
  std::fwrite(scale.data(), 4, scale.size(), result);
  std::fwrite(new_k.data(), 1, new_k.size(), result);
  std::fwrite(new_v.data(), 1, new_v.size(), result);
  std::fclose(result);
}
