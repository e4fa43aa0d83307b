// Which sizes graphs are built for.
#pragma once

#include <vector>

#include "graph/stock/lowering.h"

namespace quire {

struct GraphLimits {
    int max_rows;       // tokens of a step
    int max_logit_rows; // rows of a step whose logits are wanted
    int max_sequences;  // in one step
    int max_kv_tokens;  // cached tokens of a step's sequences together; 0: no limit, as block tables are data
};

// Padded numbers of rows: every step runs in the smallest graph that holds it.
class GraphBuckets {
  public:
    // On a device a row costs, so the steps are narrow; on the CPU they are wide.
    GraphBuckets(GraphLimits limits, bool on_device);
    // InternalError beyond the limits.
    int tokens(int n_tokens) const;
    int logit_rows(int n_tokens, int n_rows) const; // n_tokens: padded

  private:
    GraphLimits limits_;
    std::vector<int> tokens_;
};

} // namespace quire
