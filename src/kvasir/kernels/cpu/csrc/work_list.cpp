#include "work_list.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace kvasir {

namespace {

// Queries times heads that share one conversion of K and V: enough to make it cheap, few enough to stay in the L2 cache.
constexpr int64_t ROWS_TOGETHER = 96;

// Fewer would leave the tiles of queries half empty.
constexpr int64_t FEWEST_ROWS_TOGETHER = 12;

// Pieces of work each thread should find, so that the last one to finish does not finish late.
constexpr int64_t PIECES_PER_THREAD = 4;

}  // namespace

WorkList::WorkList(const WorkShape& shape, const int32_t* query_start, const int32_t* first_position,
                   const int32_t* table)
    : shape_(shape), table_(table) {
  int64_t next = 0;
  for (int64_t row = 0; row < shape.num_rows; ++row) {
    const int64_t begin = query_start[row], end = query_start[row + 1];
    if (begin != next || end < begin || end > shape.num_tokens) {
      throw std::invalid_argument("query_start of row " + std::to_string(row) + " says [" + std::to_string(begin) +
                                  ", " + std::to_string(end) + ") of " + std::to_string(shape.num_tokens) +
                                  " tokens, but rows must follow one another.");
    }
    if (end > begin) {
      check_table(row, end - begin, first_position[row]);
      add_row(row, begin, end - begin, first_position[row]);
    }
    next = end;
  }
  make_units();
}

void WorkList::check_table(int64_t row, int64_t num_tokens, int64_t first_position) const {
  const int64_t last_block = (first_position + num_tokens - 1) / shape_.block_size;
  if (first_position < 0 || last_block >= shape_.table_width) {
    throw std::invalid_argument("row " + std::to_string(row) + " has tokens up to position " +
                                std::to_string(first_position + num_tokens - 1) + ", but its block table has " +
                                std::to_string(shape_.table_width) + " blocks of " +
                                std::to_string(shape_.block_size) + " tokens.");
  }
  const int64_t sinks = std::min(shape_.sees.sinks, first_position + num_tokens);
  check_blocks(row, 0, (sinks + shape_.block_size - 1) / shape_.block_size);
  check_blocks(row, shape_.sees.oldest(first_position) / shape_.block_size, last_block + 1);
}

void WorkList::check_blocks(int64_t row, int64_t first, int64_t end) const {
  for (int64_t block = first; block < end; ++block) {
    const int64_t id = table_[row * shape_.table_width + block];
    if (id < 0 || id >= shape_.num_blocks) {
      throw std::invalid_argument("row " + std::to_string(row) + " sees block " + std::to_string(block) +
                                  " of its table, which holds " + std::to_string(id) + "; the store has blocks 0 to " +
                                  std::to_string(shape_.num_blocks - 1) + ".");
    }
  }
}

void WorkList::add_row(int64_t row, int64_t first_token, int64_t num_tokens, int64_t first_position) {
  // A step with few tokens is cut finer: every thread should have something to do.
  const int64_t pieces = PIECES_PER_THREAD * shape_.threads;
  const int64_t share = (shape_.num_tokens * shape_.group * shape_.num_store_heads + pieces - 1) / pieces;
  const int64_t rows = shape_.threads == 1 ? ROWS_TOGETHER : std::clamp(share, FEWEST_ROWS_TOGETHER, ROWS_TOGETHER);
  const int64_t together = std::max<int64_t>(1, rows / shape_.group);
  for (int64_t done = 0; done < num_tokens; done += together) {
    const int64_t count = std::min(together, num_tokens - done), position = first_position + done;
    const int64_t low = shape_.sees.oldest(position), high = position + count;
    const int64_t sinks = std::min(shape_.sees.sinks, high), others = std::max<int64_t>(0, high - low);
    QueryBlock block{};
    block.row = static_cast<int32_t>(row);
    block.first_token = static_cast<int32_t>(first_token + done);
    block.num_tokens = static_cast<int32_t>(count);
    block.first_position = static_cast<int32_t>(position);
    block.first_segment = static_cast<int32_t>(low / SEGMENT);
    block.num_sink_segments = static_cast<int32_t>((sinks + SEGMENT - 1) / SEGMENT);
    block.num_segments = block.num_sink_segments;
    if (others) block.num_segments += static_cast<int32_t>((high - 1) / SEGMENT - low / SEGMENT + 1);
    block.partials = -1;
    blocks_.push_back(block);
    costs_.push_back((sinks + others) * count);
    cost_ += costs_.back();
  }
}

void WorkList::make_units() {
  const int64_t pieces = PIECES_PER_THREAD * shape_.threads;
  std::vector<int64_t> unit_costs;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    QueryBlock& block = blocks_[i];
    // One of num_store_heads equal pieces: cut when it is more than one thread's piece of the whole.
    const bool is_cut = shape_.threads > 1 && block.num_segments > 1 &&
                        costs_[i] * pieces > cost_ * shape_.num_store_heads;
    if (!is_cut) {
      units_.push_back({static_cast<int32_t>(i), -1});
      unit_costs.push_back(costs_[i]);
      continue;
    }
    block.partials = partial_rows_;
    partial_rows_ += block.num_segments * block.num_tokens * shape_.group;
    for (int32_t segment = 0; segment < block.num_segments; ++segment) {
      units_.push_back({static_cast<int32_t>(i), segment});
      unit_costs.push_back(costs_[i] / block.num_segments);
    }
  }
  // Long pieces first, so that no thread starts one when the others are done.
  std::vector<size_t> order(units_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return unit_costs[a] > unit_costs[b]; });
  std::vector<Unit> sorted;
  sorted.reserve(units_.size());
  for (size_t i : order) sorted.push_back(units_[i]);
  units_ = std::move(sorted);
}

void WorkList::prepare(AttendArgs& args, int64_t num_store_heads, int64_t head_dim) {
  if (partial_rows_ > 0) {
    const int64_t stride = (head_dim + 15) / 16 * 16;
    partials_.resize(static_cast<size_t>(partial_rows_ * num_store_heads * (stride + 2)));
    pending_.resize(blocks_.size() * static_cast<size_t>(num_store_heads));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::fill_n(pending_.begin() + static_cast<int64_t>(i) * num_store_heads, num_store_heads,
                  blocks_[i].num_segments);
    }
  }
  args.table = table_;
  args.table_width = shape_.table_width;
  args.sees = shape_.sees;
  args.block_size = shape_.block_size;
  args.group = shape_.group;
  args.blocks = blocks_.data();
  args.units = units_.data();
  args.partials = partials_.data();
  args.pending = pending_.data();
}

}  // namespace kvasir
