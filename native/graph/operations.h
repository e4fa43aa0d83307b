// The typed operations that a trace consists of: what a model computes, before anything is said about how.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "kernels/row_kernels.h"
#include "kv/cache_spec.h"

namespace quire {

// A named tensor of the model file on the model's device.  Immutable.
struct Weight {
    std::string name;
    Tensor tensor;
};
using WeightRef = std::shared_ptr<const Weight>;

enum class Lead { tokens, rows }; // the leading dimension: every row of the step, or those whose logits are wanted

struct TraceShape {
    Lead lead;
    std::vector<int64_t> rest; // the dimensions after it; empty for tokens, positions, rows
    bool operator==(const TraceShape &) const = default;
};

enum class Gating { softmax, sigmoid };
enum class RopeLayout { half, interleaved };

struct RopeSpec {
    int n_dims;
    RopeLayout layout;
    float freq_base;
    float freq_scale;
    float ext_factor;
    float attn_factor;
    float beta_fast;
    float beta_slow;
    int n_ctx_orig;
    WeightRef factors; // may be null
    bool operator==(const RopeSpec &) const = default;
};

struct MoeSpec {
    int n_used;
    Activation activation;
    Gating gating;
    bool normalize;
    float scale;
};

// Operations by their parameters.  Inputs are numbers of earlier operations.
namespace op {
struct Tokens {};
struct Positions {};
struct LogitRows {};
struct Embed {
    WeightRef weight;
};
struct Linear {
    WeightRef weight, bias;
}; // bias may be null
struct RmsNorm {
    WeightRef weight;
    float eps;
}; // weight may be null
struct Rope {
    RopeSpec spec;
};
struct Attend {
    int layer;
    float scale;
    float soft_cap;
    WeightRef sinks;
}; // sinks may be null
struct Glu {
    Activation activation;
};
struct Activate {
    Activation activation;
};
struct SoftCap {
    float cap;
};
struct SelectRows {};
struct Moe {
    WeightRef router, gate, up, down;
    MoeSpec spec;
};
struct Add {};
struct Multiply {};
struct Scale {
    float factor;
};
struct Reshape {}; // heads, merge_heads
} // namespace op

using OperationKind = std::variant<op::Tokens, op::Positions, op::LogitRows, op::Embed, op::Linear, op::RmsNorm,
                                   op::Rope, op::Attend, op::Glu, op::Activate, op::SoftCap, op::SelectRows, op::Moe,
                                   op::Add, op::Multiply, op::Scale, op::Reshape>;

struct Operation {
    OperationKind kind;
    std::vector<int> inputs;
    TraceShape shape; // of the result
};

// A finished forward pass.  Invariants: inputs refer to earlier operations; every layer of `cache` is attended to
// exactly once; the output is [rows, n_vocab].
struct Trace {
    std::vector<CacheSpec> cache;
    std::vector<Operation> operations;
    int output;
    int64_t n_vocab;
    int hidden = -1; // [rows, n]: what the matrix of the output reads; -1 where the output is no product
    int64_t n_hidden() const { return hidden < 0 ? 0 : operations[static_cast<size_t>(hidden)].shape.rest[0]; }
};

std::string describe(const Operation &operation);

} // namespace quire
