// The nodes that programs on the CPU consist of.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "graph/cpu_program.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// A norm over the last n values; without weight where it is null.
struct RowNorm {
    const float *weight;
    float eps;
    int64_t n;
};

class EmbedNode : public CpuNode {
  public:
    // `ids`: null where they are the step's tokens.
    EmbedNode(const Matrix *table, CpuValue *ids, CpuValue *out) : table_(table), ids_(ids), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    const Matrix *table_;
    CpuValue *ids_, *out_;
};

// Rows of x, normed where there is a norm, in the form that a matrix wants.
class RoundNode : public CpuNode {
  public:
    RoundNode(CpuValue *x, std::optional<RowNorm> norm, const Matrix *matrix, CpuValue *out)
        : x_(x), out_(out), norm_(norm), matrix_(matrix) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_, *out_;
    std::optional<RowNorm> norm_;
    const Matrix *matrix_;
};

// Products over one set of activations, with what follows them: biases, then a residual or a gate.
class ProductNode : public CpuNode {
  public:
    struct Part {
        const Matrix *matrix;
        CpuValue *x;
        const float *bias;
        CpuValue *out;
    };
    ProductNode(Lead lead, std::vector<Part> parts, CpuValue *residual, std::optional<Activation> activation)
        : lead_(lead), parts_(std::move(parts)), residual_(residual) {
        product_.activation = activation;
    }
    // The largest number of every strip of the only part's rows goes there.
    void keep_maxima(CpuValue *maxima) { maxima_ = maxima; }
    void place() override;
    void run(const CpuRun &run) override;

  private:
    Lead lead_;
    std::vector<Part> parts_;
    CpuValue *residual_, *maxima_ = nullptr;
    Product product_;
};

class NormNode : public CpuNode {
  public:
    NormNode(CpuValue *x, RowNorm norm, CpuValue *out) : x_(x), out_(out), norm_(norm) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_, *out_;
    RowNorm norm_;
};

// Cosines and sines [n_dims], [n_dims] of each token's position, signs and order as RowKernels wants them.  Positions
// times frequencies: Su et al. 2021; scaled as in Peng et al. 2023 (YaRN) where spec.ext_factor is not zero.
class RotationTableNode : public CpuNode {
  public:
    RotationTableNode(const RopeSpec &spec, CpuValue *out);
    void run(const CpuRun &run) override;

  private:
    void fill(float position, float *row) const;
    RopeSpec spec_;
    std::vector<float> frequencies_, stretch_; // of each pair; stretch_: the share that is not interpolated
    float magnitude_;
    CpuValue *out_;
};

struct Rotation {
    CpuValue *table;
    int n_dims;
    RopeLayout layout;
};

// Heads of every token, normed and rotated in place.
struct HeadSteps {
    CpuValue *x; // [n_head * head_dim]
    int n_head, head_dim;
    std::optional<RowNorm> norm;
    std::optional<Rotation> rotation;

    void apply(int64_t row) const;
};

class HeadsNode : public CpuNode { // copies x where the heads are another value, then as above
  public:
    HeadsNode(CpuValue *x, HeadSteps steps) : x_(x), steps_(steps) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_;
    HeadSteps steps_;
};

// Where K and V lie: in the cache, or in values of the program.
struct AttentionPools {
    void *k, *v;
    CpuValue *own_k, *own_v; // in the place of k and v, unless null
    void *k_data() const { return own_k != nullptr ? own_k->data : k; }
    void *v_data() const { return own_v != nullptr ? own_v->data : v; }
};

// What attention does first: queries and keys are normed and rotated, keys and values go to the cache.
class CacheNode : public CpuNode {
  public:
    CacheNode(int group, AttentionShape shape, AttentionPools pools, HeadSteps q, HeadSteps k, CpuValue *v)
        : group_(static_cast<size_t>(group)), shape_(shape), pools_(pools), q_(q), k_(k), v_(v) {}
    void run(const CpuRun &run) override;

  private:
    size_t group_;
    AttentionShape shape_;
    AttentionPools pools_;
    HeadSteps q_, k_;
    CpuValue *v_;
};

class AttendNode : public CpuNode {
  public:
    // What scores get beside the products.
    struct Extras {
        const float *sinks = nullptr; // or null
        DistanceBias bias;
    };
    AttendNode(int group, AttentionShape shape, AttentionPools pools, Extras extras, CpuValue *q, CpuValue *out)
        : group_(static_cast<size_t>(group)), shape_(shape), pools_(pools), extras_(extras), q_(q), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    size_t group_;
    AttentionShape shape_;
    AttentionPools pools_;
    Extras extras_;
    CpuValue *q_, *out_;
};

// What is done to each number by itself.
struct ElementStep {
    enum class Kind { add, multiply, scale, activate, gate, soft_cap } kind;
    float number = 0.0F; // factor, cap
    Activation activation = Activation::silu;
};

class ElementNode : public CpuNode {
  public:
    // `b`: the second operand, or null.
    ElementNode(ElementStep step, CpuValue *a, CpuValue *b, CpuValue *out) : step_(step), a_(a), b_(b), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    void apply(const float *a, const float *b, float *out, int64_t n) const;
    ElementStep step_;
    CpuValue *a_, *b_, *out_;
};

class SelectRowsNode : public CpuNode {
  public:
    SelectRowsNode(CpuValue *x, CpuValue *out) : x_(x), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_, *out_;
};

} // namespace quire
