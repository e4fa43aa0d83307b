// The sizes for which graphs are built.
#pragma once

#include <vector>

#include "graph/stock/lowering.h"

namespace quire {

struct GraphLimits {
    int max_rows;       // tokens of a step
    int max_logit_rows; // rows of a step with logits
    int max_sequences;  // in one step
    int max_kv_tokens;  // cached tokens, summed over a step's sequences; 0: unlimited, as tables are data
};

// Padded numbers of rows: every step runs in the smallest graph that holds it.
class GraphBuckets {
  public:
    // On a device padding costs time, so sizes are close to each other; on the CPU they are far apart.
    GraphBuckets(GraphLimits limits, bool on_device);
    // InternalError beyond the limits.
    int tokens(int n_tokens) const;
    int logit_rows(int n_tokens, int n_rows) const; // n_tokens: padded

  private:
    GraphLimits limits_;
    std::vector<int> tokens_;
};

} // namespace quire
