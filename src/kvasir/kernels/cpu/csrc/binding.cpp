// The Python face of the kernels.  Tensors arrive as addresses: kernels/cpu/kernels.py has checked them, and passing
// numbers costs a tenth of passing tensors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <stdexcept>

#include "dispatch.h"
#include "pool.h"
#include "work_list.h"

namespace nb = nanobind;

namespace kvasir {
namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// (data, row_scale, col_scale, bias, width); 0 for what is not there.
ProductView product_of(const nb::tuple& p) {
  return {at<const void>(nb::cast<uintptr_t>(p[0])), at<const float>(nb::cast<uintptr_t>(p[1])),
          at<const float>(nb::cast<uintptr_t>(p[2])), at<const float>(nb::cast<uintptr_t>(p[3])),
          nb::cast<int64_t>(p[4])};
}

// (data, scale, rotation); scale 0: dense.
StyleView style_of(const nb::tuple& s) {
  const uintptr_t data = nb::cast<uintptr_t>(s[0]), scale = nb::cast<uintptr_t>(s[1]);
  return {scale ? nullptr : at<float>(data), scale ? at<int8_t>(data) : nullptr, at<float>(scale),
          nb::cast<int64_t>(s[2])};
}

// The store of one (group, layer).
struct LayerView {
  std::vector<uintptr_t> k, v;  // the format's tensors
  int32_t k_dtype, v_dtype;
  std::vector<int32_t> heads;
  int64_t block_size, head_dim, num_blocks;
  std::vector<uintptr_t> constants;  // in the order of Constants; 0 for what there is not

  Constants head_constants() const {
    const auto get = [&](size_t i) { return at<const float>(constants.at(i)); };
    return {get(0), get(1), get(2), get(3), get(4), get(5)};
  }
};

template <class T>
void set_tensors(T* (&tensors)[MAX_TENSORS], const std::vector<uintptr_t>& addresses) {
  if (addresses.empty() || addresses.size() > MAX_TENSORS) throw std::invalid_argument("bad number of tensors.");
  for (size_t i = 0; i < addresses.size(); ++i) tensors[i] = at<T>(addresses[i]);
}

void check_ids(const int64_t* ids, int64_t count, int64_t limit, const char* what) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= limit) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(ids[i]) + " is outside the store, which has " +
                                  std::to_string(limit) + ".");
    }
  }
}

struct CopyArgs {
  const uintptr_t* tensors;
  const int64_t* block_bytes;
  const int64_t *sources, *targets;
  int64_t count;
};

void copy_tensors(const CopyArgs& copy, int64_t begin, int64_t end, Scratch&) {
  for (int64_t n = begin; n < end; ++n) {
    char* base = at<char>(copy.tensors[n]);
    const size_t size = size_t(copy.block_bytes[n]);
    for (int64_t i = 0; i < copy.count; ++i) memcpy(base + copy.targets[i] * size, base + copy.sources[i] * size, size);
  }
}

// What the products share: rows filled up to a multiple of four channels, and what their sums start with.
struct LinearCall {
  LinearArgs args;
  std::vector<int8_t> padded;
  std::vector<int32_t> starts;

  LinearCall(const KernelTable& table, const nb::tuple& rows, uintptr_t weights, int64_t num_columns) {
    const int64_t num_rows = nb::cast<int64_t>(rows[1]), width = nb::cast<int64_t>(rows[2]);
    const int8_t* data = at<const int8_t>(nb::cast<uintptr_t>(rows[0]));
    args = {data, num_rows, width, width, at<const uint8_t>(weights), num_columns, nullptr, nullptr};
    if (width % 4) {
      args.row_stride = (width + 3) / 4 * 4;
      padded.resize(num_rows * args.row_stride);
      for (int64_t t = 0; t < num_rows; ++t) memcpy(&padded[t * args.row_stride], data + t * width, width);
      args.rows = padded.data();
    }
    starts.resize(num_rows);
    table.row_starts(args, starts.data());
    args.starts = starts.data();
  }
  LinearCall(const LinearCall&) = delete;
  int64_t sixteens() const { return (args.num_columns + 15) / 16; }
  int64_t cost() const { return args.num_columns * args.width * (args.num_rows + 1) / 16; }
};

class Context {
 public:
  Context(int threads, const std::string& isa, bool own_threads)
      : table_(choose_kernels(isa)), pool_(threads, own_threads) {}

  const char* isa() const { return table_->name; }
  bool has_openmp() const { return pool_.has_openmp(); }

  void norm_rows(uintptr_t x, int64_t rows, int64_t width, uintptr_t weight, float eps, const nb::tuple& style) {
    const NormArgs args{at<float>(x), {}, at<const float>(weight), eps, width, style_of(style)};
    run(rows, rows * width, args, table_->norm_rows);
  }

  void add_norm_rows(uintptr_t x, int64_t rows, const nb::tuple& product, uintptr_t weight, float eps,
                     const nb::tuple& style) {
    const ProductView view = product_of(product);
    const NormArgs args{at<float>(x), view, at<const float>(weight), eps, view.width, style_of(style)};
    run(rows, rows * view.width, args, table_->add_norm_rows);
  }

  void add_product(uintptr_t x, int64_t rows, const nb::tuple& product) {
    const ProductView view = product_of(product);
    const NormArgs args{at<float>(x), view, nullptr, 0.0f, view.width, {}};
    run(rows, rows * view.width, args, table_->add_product);
  }

  void rotate_rows(uintptr_t x, int64_t rows, int64_t width, const nb::tuple& style) {
    const RowsArgs args{at<const float>(x), {}, width, style_of(style)};
    run(rows, rows * width, args, table_->rotate_rows);
  }

  void swiglu_rows(int64_t rows, const nb::tuple& product, const nb::tuple& style) {
    const ProductView view = product_of(product);
    const RowsArgs args{nullptr, view, view.width / 2, style_of(style)};
    run(rows, rows * view.width, args, table_->swiglu_rows);
  }

  // targets: [(LayerView, address of slots)].
  void qkv_write(const nb::tuple& product, int64_t rows, int64_t num_heads, int64_t num_kv_heads,
                 const nb::tuple& norms, uintptr_t cos, uintptr_t sin, uintptr_t q, const nb::list& targets) {
    QkvArgs args{};
    args.product = product_of(product);
    args.num_heads = num_heads;
    args.num_kv_heads = num_kv_heads;
    args.head_dim = args.product.width / (num_heads + 2 * num_kv_heads);
    args.q_norm = at<const float>(nb::cast<uintptr_t>(norms[0]));
    args.k_norm = at<const float>(nb::cast<uintptr_t>(norms[1]));
    args.eps = nb::cast<float>(norms[2]);
    args.cos = at<const float>(cos);
    args.sin = at<const float>(sin);
    args.q = at<float>(q);
    std::vector<KVTarget> views;
    for (const nb::handle& item : targets) {
      const nb::tuple pair = nb::cast<nb::tuple>(item);
      const LayerView& layer = *nb::cast<const LayerView*>(pair[0]);
      const int64_t* slots = at<const int64_t>(nb::cast<uintptr_t>(pair[1]));
      check_ids(slots, rows, layer.num_blocks * layer.block_size, "slot");
      KVTarget target{{}, {}, Dtype(layer.k_dtype), Dtype(layer.v_dtype), layer.heads.data(),
                      int64_t(layer.heads.size()), layer.block_size, slots, layer.head_constants()};
      set_tensors(target.k, layer.k);
      set_tensors(target.v, layer.v);
      views.push_back(target);
    }
    args.targets = views.data();
    args.num_targets = int64_t(views.size());
    run(rows, rows * args.product.width, args, table_->qkv_write);
  }

  void attend(WorkList& work, const LayerView& layer, uintptr_t q, uintptr_t out, int64_t num_heads, float scale) {
    const int64_t num_store_heads = int64_t(layer.heads.size());
    AttendArgs args{};
    args.q = at<const float>(q);
    args.out = at<float>(out);
    set_tensors(args.k, layer.k);
    set_tensors(args.v, layer.v);
    args.k_dtype = Dtype(layer.k_dtype);
    args.v_dtype = Dtype(layer.v_dtype);
    args.heads = layer.heads.data();
    args.constants = layer.head_constants();
    args.num_store_heads = num_store_heads;
    args.num_heads = num_heads;
    args.head_dim = layer.head_dim;
    args.scale = scale;
    work.prepare(args, num_store_heads, layer.head_dim);
    const int64_t cost = work.cost() * work.shape().group * num_store_heads * layer.head_dim / 16;
    run_pieces(work.num_units() * num_store_heads, 1, cost, args, table_->attend);
  }

  void pack_codes(uintptr_t codes, int64_t num_columns, int64_t width, uintptr_t packed) {
    const PackArgs args{at<const int8_t>(codes), num_columns, width, at<uint8_t>(packed)};
    run((num_columns + 15) / 16, num_columns * width, args, table_->pack_codes);
  }

  // rows: (address, number, width).  Products with few rows may take weights as they came (is_packed false).
  void multiply(const nb::tuple& rows, uintptr_t weights, int64_t num_columns, bool is_packed, uintptr_t out) {
    LinearCall call(*table_, rows, weights, num_columns);
    call.args.out = at<int32_t>(out);
    run_pieces(call.sixteens(), LINEAR_GRAIN, call.cost(), call.args,
               is_packed ? table_->multiply : table_->multiply_unpacked, Sharing::RANGES);
  }

  // Per row the largest value of the product and its column, the lowest of equals; NaN where a value is NaN.
  void multiply_best(const nb::tuple& rows, uintptr_t row_scale, uintptr_t weights, int64_t num_columns,
                     uintptr_t col_scale, uintptr_t bias, uintptr_t columns, uintptr_t values) {
    LinearCall call(*table_, rows, weights, num_columns);
    const int64_t num_rows = call.args.num_rows, wanted = 8 * pool_.threads() * LINEAR_GRAIN;
    const int64_t grain = (call.sixteens() + wanted - 1) / wanted * LINEAR_GRAIN;
    const int64_t pieces = (call.sixteens() + grain - 1) / grain;
    std::vector<Best> bests(pieces * num_rows, Best{-std::numeric_limits<float>::infinity(), 0});
    const BestArgs args{call.args, at<const float>(row_scale), at<const float>(col_scale), at<const float>(bias), grain,
                        bests.data()};
    run_pieces(call.sixteens(), grain, call.cost(), args, table_->multiply_best, Sharing::RANGES);
    for (int64_t t = 0; t < num_rows; ++t) {
      Best best = bests[t];
      for (int64_t piece = 1; piece < pieces; ++piece) {
        const Best& other = bests[piece * num_rows + t];
        if (other.value > best.value || other.value != other.value) best = other;
        if (best.value != best.value) break;
      }
      at<int64_t>(columns)[t] = best.channel;
      at<float>(values)[t] = best.value;
    }
  }

  // Copies blocks sources[i] -> targets[i] of every tensor: [(address, bytes of a block)].
  void copy_blocks(const std::vector<uintptr_t>& tensors, const std::vector<int64_t>& block_bytes, uintptr_t sources,
                   uintptr_t targets, int64_t count, int64_t num_blocks) {
    const int64_t *from = at<const int64_t>(sources), *to = at<const int64_t>(targets);
    check_ids(from, count, num_blocks, "source block");
    check_ids(to, count, num_blocks, "target block");
    const int64_t num_tensors = int64_t(tensors.size());
    int64_t bytes = 0;
    for (int64_t size : block_bytes) bytes += size * count;
    const CopyArgs args{tensors.data(), block_bytes.data(), from, to, count};
    run_pieces(num_tensors, 1, bytes / 8, args, copy_tensors);
  }

  // bounds: [num_blocks, num_heads, 2, head_dim]; shape: (rows, num_heads, group, head_dim, table_width, num_blocks, limit).
  void select_blocks(const std::vector<int64_t>& shape, uintptr_t q, uintptr_t bounds, uintptr_t table, uintptr_t counts,
                     uintptr_t out) {
    const int64_t rows = shape[0], num_blocks = shape[5];
    const SelectArgs args{at<const float>(q), shape[2], shape[3], shape[1], at<const bf16>(bounds),
                          at<const int32_t>(table), shape[4], at<const int32_t>(counts), shape[6], at<int32_t>(out)};
    int64_t cost = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t count = args.num_blocks[row];
      if (args.limit < 2 || count <= args.limit || count > args.table_width) {
        throw std::invalid_argument("row " + std::to_string(row) + " has " + std::to_string(count) + " blocks, of which " +
                                    std::to_string(args.limit) + " cannot be chosen.");
      }
      for (int64_t b = 0; b < count; ++b) {
        const int64_t id = args.table[row * args.table_width + b];
        if (id < 0 || id >= num_blocks) throw std::invalid_argument("block " + std::to_string(id) + " is not in the store.");
      }
      cost += count * args.num_heads * args.group * args.head_dim / 16;
    }
    run_pieces(rows * args.num_heads, 1, cost, args, table_->select_blocks);
  }

  void exponentials(uintptr_t x, uintptr_t exp2_out, uintptr_t exp_out, int64_t count) const {
    table_->exponentials(at<const float>(x), at<float>(exp2_out), at<float>(exp_out), count);
  }

  int64_t multiply_adds(int64_t rounds) const {
    float sums[16];
    return table_->multiply_adds(rounds, sums);
  }

 private:
  // About what one core does in ten microseconds: less is not worth waking anybody, or giving the GIL away.
  static constexpr int64_t SMALL = 16384;

  template <class Args>
  void run(int64_t rows, int64_t cost, const Args& args, void (*kernel)(const Args&, int64_t, int64_t, Scratch&)) {
    const int64_t pieces = 4 * pool_.threads();
    run_pieces(rows, (rows + pieces - 1) / pieces, cost, args, kernel);
  }

  template <class Args>
  void run_pieces(int64_t count, int64_t grain, int64_t cost, const Args& args,
                  void (*kernel)(const Args&, int64_t, int64_t, Scratch&), Sharing sharing = Sharing::QUEUE) {
    struct Call {
      const Args& args;
      void (*kernel)(const Args&, int64_t, int64_t, Scratch&);
    } call{args, kernel};
    const auto body = [](void* context, int64_t begin, int64_t end, Scratch& scratch) {
      const Call& c = *static_cast<const Call*>(context);
      c.kernel(c.args, begin, end, scratch);
    };
    if (cost < SMALL) {
      pool_.run(count, count, body, &call);
      return;
    }
    nb::gil_scoped_release release;
    pool_.run(count, grain, body, &call, sharing);
  }

  const KernelTable* table_;
  Pool pool_;
};

NB_MODULE(_ext, m) {
  nb::class_<LayerView>(m, "LayerView")
      .def("__init__", [](LayerView* self, std::vector<uintptr_t> k, std::vector<uintptr_t> v, int32_t k_dtype,
                          int32_t v_dtype, std::vector<int32_t> heads, int64_t block_size, int64_t head_dim, int64_t num_blocks,
                          std::vector<uintptr_t> constants) {
        new (self) LayerView{std::move(k), std::move(v), k_dtype,  v_dtype,   std::move(heads),
                             block_size,   head_dim,     num_blocks, std::move(constants)};
      });
  nb::class_<WorkList>(m, "WorkList")
      .def("__init__",
           [](WorkList* self, const std::vector<int64_t>& shape, uintptr_t query_start, uintptr_t first_position,
              uintptr_t table) {
             const Visibility sees{shape[4], shape[5], shape[6]};
             const WorkShape s{shape[0], shape[1], shape[2], shape[3], sees, shape[7], shape[8], shape[9], shape[10]};
             new (self) WorkList(s, at<const int32_t>(query_start), at<const int32_t>(first_position),
                                 at<const int32_t>(table));
           })
      .def_prop_ro("num_units", &WorkList::num_units)
      .def_prop_ro("group", [](const WorkList& self) { return self.shape().group; })
      .def_prop_ro("num_tokens", [](const WorkList& self) { return self.shape().num_tokens; });
  nb::class_<Context>(m, "Context")
      .def(nb::init<int, const std::string&, bool>())
      .def_prop_ro("isa", &Context::isa)
      .def_prop_ro("has_openmp", &Context::has_openmp)
      .def("norm_rows", &Context::norm_rows)
      .def("add_norm_rows", &Context::add_norm_rows)
      .def("add_product", &Context::add_product)
      .def("rotate_rows", &Context::rotate_rows)
      .def("swiglu_rows", &Context::swiglu_rows)
      .def("qkv_write", &Context::qkv_write)
      .def("attend", &Context::attend)
      .def("pack_codes", &Context::pack_codes)
      .def("multiply", &Context::multiply)
      .def("multiply_best", &Context::multiply_best)
      .def("copy_blocks", &Context::copy_blocks)
      .def("select_blocks", &Context::select_blocks)
      .def("exponentials", &Context::exponentials)
      .def("multiply_adds", &Context::multiply_adds);
}

}  // namespace
}  // namespace kvasir
