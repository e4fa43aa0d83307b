// The typed operations that a trace consists of: what a model computes, before anything is said about how.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "kernels/rows/row_kernels.h"
#include "kv/cache_spec.h"

namespace quire {

// A named tensor of the model file on the model's device.  Immutable.
struct Weight {
    std::string name;
    Tensor tensor;
};
using WeightRef = std::shared_ptr<const Weight>;

class Primitive;

enum class Lead { tokens, rows }; // the leading dimension: every row of the step, or those whose logits are wanted

struct TraceShape {
    Lead lead;
    std::vector<int64_t> rest; // the dimensions after it; empty for tokens, positions, rows
    bool operator==(const TraceShape &) const = default;
};

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

// From a router's scores to the experts of a token and their weights.
enum class Gating {
    softmax,           // over all experts
    sigmoid,           // of each score
    softmax_of_chosen, // over the scores of those chosen
};
enum class GroupScore { largest, two_largest }; // what a group of experts is ranked by: a number, or the sum of two
struct Routing {
    int n_used;
    Gating gating;
    bool normalize; // weights are divided by their sum
    float scale;
    int n_group = 1, n_group_used = 1; // only experts of the best groups are chosen
    GroupScore group_score = GroupScore::two_largest;
};

// What an expert does between its matrices.
enum class ExpertUnit { gated, clamped_swiglu, ungated }; // activation(gate) * up; gpt-oss's; activation(up)
struct MoeSpec {
    Routing routing;
    ExpertUnit unit;
    Activation activation;
    bool is_squared = false;             // activation(up) ** 2, of ungated ones
    float alpha = 1.702F, limit = 7.0F;  // of clamped_swiglu
    bool weighs_input = false;           // the weight goes to the expert's input instead of its output
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
// Inputs: q, k, v; or q alone, which attends to what another operation of the step has written to the layer.
struct Attend {
    int layer;
    float scale;
    float soft_cap;
    WeightRef sinks, bias; // either may be null; bias [n_head, n]: see DistanceBias
};
// Rows of a sequence attend to each other both ways, and nothing is cached.  Inputs: q, k, v.
struct AttendRows {
    float scale;
    float soft_cap;
    int window; // w: w / 2 positions to either side; 0: all
    WeightRef bias; // as above, [n_head, odd]; may be null
};
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
// Inputs: x, the router's scores.
struct Moe {
    WeightRef gate, up, down;                 // gate is null where experts are ungated
    WeightRef selection_bias;                 // [n_expert] added to what is ranked, not to weights; may be null
    WeightRef expert_scale;                   // [n_expert] multiplies weights; may be null
    WeightRef gate_bias, up_bias, down_bias;  // [n_expert, n]; may be null
    MoeSpec spec;
};
struct Add {};
struct Multiply {};
struct Scale {
    float factor;
};
struct Reshape {}; // heads, merge_heads, reshape
struct Primitive {
    std::shared_ptr<const quire::Primitive> spec;
}; // any other: graph/primitive.h
} // namespace op

using OperationKind =
    std::variant<op::Tokens, op::Positions, op::LogitRows, op::Embed, op::Linear, op::RmsNorm, op::Rope, op::Attend,
                 op::AttendRows, op::Glu, op::Activate, op::SoftCap, op::SelectRows, op::Moe, op::Add, op::Multiply,
                 op::Scale, op::Reshape, op::Primitive>;

struct Operation {
    OperationKind kind;
    std::vector<int> inputs;
    TraceShape shape; // of the result
};

// What a forward pass ends with: logits, or vectors (of embeddings, or scores of classes).
enum class OutputKind { logits, vectors };

// A finished forward pass.  Invariants: inputs refer to earlier operations; every layer of `cache` that keeps rows is
// written once; the output is [rows, n].
struct Trace {
    std::vector<CacheSpec> cache;
    std::vector<Operation> operations;
    int output;
    OutputKind kind;
    int64_t n_vocab; // of the logits, or else of the ids that the model reads
    // [rows, n]: the output where it is vectors, else what the matrix of the output reads; -1 where it is no product
    int hidden = -1;
    int64_t n_hidden() const { return hidden < 0 ? 0 : operations[static_cast<size_t>(hidden)].shape.rest[0]; }
    int64_t n_output() const { return operations[static_cast<size_t>(output)].shape.rest[0]; }
    bool attends_both_ways() const;
};

std::string describe(const Operation &operation);

} // namespace quire
