// Records a model's forward pass, checking every operation as it comes.
#pragma once

#include <memory>
#include <vector>

#include "graph/operations.h"

namespace quire {

class Tracer;

// A value of the pass: a number in its tracer.
struct TraceTensor {
    std::shared_ptr<Tracer> tracer;
    int id;
    const TraceShape &shape() const;
};

class Tracer : public std::enable_shared_from_this<Tracer> {
  public:
    // One CacheSpec per layer.  ShapeError when one of them cannot be.
    static std::shared_ptr<Tracer> make(std::vector<CacheSpec> cache);

    TraceTensor tokens() { return {shared_from_this(), 0}; }
    TraceTensor positions() { return {shared_from_this(), 1}; }
    TraceTensor logit_rows() { return {shared_from_this(), 2}; }

    // Ends the trace with logits or vectors [rows, n]; the tracer takes no more operations.
    Trace finish(const TraceTensor &output, OutputKind kind);

    TraceTensor record(OperationKind kind, const std::vector<TraceTensor> &inputs, TraceShape shape);
    const CacheRows &rows_of(int layer) const;
    void mark_written(int layer);
    // An operation owns state `index` of the layer, which must be of n numbers.  ShapeError naming `place` otherwise.
    void claim_state(const char *place, int layer, int index, int64_t n);
    bool is_written(int layer) const { return written_[static_cast<size_t>(layer)]; }
    const Operation &operation(int id) const { return operations_[static_cast<size_t>(id)]; }

  private:
    explicit Tracer(std::vector<CacheSpec> cache);
    std::vector<CacheSpec> cache_;
    std::vector<bool> written_; // by layer
    std::vector<std::vector<bool>> claimed_; // by layer and state
    std::vector<Operation> operations_;
    bool finished_ = false;
};

// The operations.  All throw ShapeError where shapes do not fit.
TraceTensor add(const TraceTensor &a, const TraceTensor &b);
TraceTensor multiply(const TraceTensor &a, const TraceTensor &b);
TraceTensor scale(const TraceTensor &x, float factor);
TraceTensor heads(const TraceTensor &x, int n_head);
TraceTensor merge_heads(const TraceTensor &x);
TraceTensor embed(const TraceTensor &tokens, WeightRef weight);
TraceTensor linear(const TraceTensor &x, WeightRef weight, WeightRef bias);
TraceTensor rms_norm(const TraceTensor &x, WeightRef weight, float eps);
TraceTensor rope(const TraceTensor &x, const TraceTensor &positions, RopeSpec spec);
struct Heads {
    TraceTensor q, k, v; // [tokens, n_head or n_kv_head, head_dim]
};
TraceTensor attend(const Heads &heads, op::Attend parameters);
TraceTensor attend_to_written(const TraceTensor &q, op::Attend parameters); // by another operation
TraceTensor attend_rows(const Heads &heads, op::AttendRows parameters);
TraceTensor glu(const TraceTensor &gate, const TraceTensor &up, Activation activation);
TraceTensor activate(const TraceTensor &x, Activation activation);
TraceTensor soft_cap(const TraceTensor &x, float cap);
TraceTensor select_rows(const TraceTensor &x, const TraceTensor &rows);
TraceTensor moe(const TraceTensor &x, const TraceTensor &scores, op::Moe parameters); // scores [tokens, n_expert]
// Of graph/primitives.h, whose functions check the shapes.
TraceTensor record_primitive(std::shared_ptr<const Primitive> primitive, const std::vector<TraceTensor> &inputs,
                             TraceShape shape);

} // namespace quire
