// ggml's own operators for every operation, on every device: the fallback and the oracle.
#pragma once

#include "graph/lowering.h"

namespace quire {

// State while one graph is built.
struct GraphBuild {
    const Trace &trace;
    LoweredGraph &out;
    std::vector<ggml_tensor *> values; // by operation number; as many as are lowered
    struct Written {
        ggml_tensor *k, *v; // the pools of a layer with the step's rows in them
    };
    std::map<int, Written> written{}; // by layer
    ggml_context *context() const { return out.context.get(); }
};

class StockLowering : public Lowering {
  public:
    explicit StockLowering(const KvStore &store) : store_(store) {}
    LoweredGraph lower(const Trace &trace, GraphKey key) const override;

  private:
    struct AttendInputs {
        ggml_tensor *q, *k, *v; // [n_tokens, heads, head_dim]; k and v are null where they are written already
    };
    // Store k and v, attend; [n_tokens, n_head, v_head_dim].  Gathers the cached rows into one array and masks.
    ggml_tensor *attend(GraphBuild &build, const op::Attend &operation, AttendInputs inputs) const;
    // Attention among a step's own rows: all scores, masked.
    ggml_tensor *attend_rows(GraphBuild &build, const op::AttendRows &operation, AttendInputs inputs) const;
    ggml_tensor *lower_operation(GraphBuild &build, const Operation &operation) const;
    const KvStore &store_;
};

} // namespace quire
