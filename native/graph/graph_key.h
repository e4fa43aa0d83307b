// Which sizes graphs are built for.
#pragma once

#include <vector>

#include "graph/lowering.h"

namespace quire {

struct GraphLimits {
    int max_rows;       // tokens of a step
    int max_logit_rows; // rows of a step whose logits are wanted
    int max_kv_tokens;  // cached tokens of a step's sequences together; 0: no limit, as block tables are data
};

// Padded sizes, for limits that have max_kv_tokens: every step runs in the smallest graph that holds it.
class GraphBuckets {
  public:
    explicit GraphBuckets(GraphLimits limits);
    // All keys, the largest first.
    std::vector<GraphKey> keys() const;
    // The smallest key that holds a step; InternalError beyond the limits.
    GraphKey fit(int n_tokens, int n_rows, int n_kv) const;
    const GraphLimits &limits() const { return limits_; }

  private:
    std::vector<int> row_sizes(int n_tokens) const;
    GraphLimits limits_;
    std::vector<int> tokens_, rows_, kv_;
};

} // namespace quire
