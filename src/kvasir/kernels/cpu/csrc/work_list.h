// The attention work of one step for one group: which tokens are attended together, and in how many pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace kvasir {

struct WorkShape {
  int64_t num_rows, num_tokens, table_width, block_size;
  Visibility sees;
  int64_t group;            // query heads per KV head
  int64_t num_store_heads;  // KV heads a layer of this group has
  int64_t num_blocks;       // in the store
  int64_t threads;
};

class WorkList {
 public:
  // query_start [R + 1], first_position [R], table [R, table_width]: read now; ``table`` again in every attend.
  // Throws std::invalid_argument for a table that does not cover what the queries see.
  WorkList(const WorkShape& shape, const int32_t* query_start, const int32_t* first_position, const int32_t* table);

  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }
  // Query-token pairs of one query head, summed over the step.
  int64_t cost() const { return cost_; }
  const WorkShape& shape() const { return shape_; }

  // Fills in everything of ``args`` that the list knows, and gets it ready for one attend call.
  void prepare(AttendArgs& args, int64_t num_store_heads, int64_t head_dim);

 private:
  void add_row(int64_t row, int64_t first_token, int64_t num_tokens, int64_t first_position);
  void check_table(int64_t row, int64_t num_tokens, int64_t first_position) const;
  void check_blocks(int64_t row, int64_t first, int64_t end) const;
  void make_units();

  WorkShape shape_;
  const int32_t* table_;
  std::vector<QueryBlock> blocks_;
  std::vector<int64_t> costs_;  // of blocks_
  std::vector<Unit> units_;
  std::vector<int32_t> pending_;
  std::vector<float> partials_;
  int64_t partial_rows_ = 0;
  int64_t cost_ = 0;
};

}  // namespace kvasir
