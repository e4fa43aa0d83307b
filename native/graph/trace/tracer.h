// Records a model's forward pass, checking every operation as it comes.
#pragma once

#include <memory>
#include <vector>

#include "graph/trace/trace.h"

namespace quire {

class Tracer;

// A value of the pass: the number of an operation in its tracer.
struct TraceTensor {
    std::shared_ptr<Tracer> tracer;
    int id;
    const TraceShape &shape() const;
};

class Tracer : public std::enable_shared_from_this<Tracer> {
  public:
    // One CacheSpec per layer.  ShapeError for an invalid one.
    static std::shared_ptr<Tracer> make(std::vector<CacheSpec> cache);

    TraceTensor tokens() { return {shared_from_this(), tokens_operation}; }
    TraceTensor positions() { return {shared_from_this(), positions_operation}; }
    TraceTensor logit_rows() { return {shared_from_this(), logit_rows_operation}; }
    TraceTensor token_types() { return {shared_from_this(), token_types_operation}; }

    // Declares the hidden state after a layer, [tokens, n], to be read after each step.  ShapeError unless layers
    // ascend.
    void tap(int layer, const TraceTensor &x);
    // Declares the features [tokens, n], after all taps.
    void show_features(const TraceTensor &x) { tap(features_tap, x); }
    // The features that come with each token of a head, [tokens, n].  ShapeError if requested twice.
    TraceTensor features(int64_t n);
    const std::vector<Tap> &taps() const { return taps_; }
    // Ends the trace with logits or vectors [rows, n]; the tracer takes no more operations.  `encoder`: the trace that
    // writes the layers of a source text, where there are any; that trace itself ends with vectors, and writes no
    // others.
    Trace finish(const TraceTensor &output, OutputKind kind, std::shared_ptr<const Trace> encoder = nullptr);

    TraceTensor record(std::shared_ptr<const OperationKind> kind, const std::vector<TraceTensor> &inputs,
                       TraceShape shape);
    const CacheRows &rows_of(int layer) const;
    void mark_written(int layer);
    // Claims state `index` of the layer, of n numbers, for one operation.  ShapeError naming `place` if that is not
    // possible.
    void claim_state(const char *place, int layer, int index, int64_t n);
    bool is_written(int layer) const { return written_[static_cast<size_t>(layer)]; }
    const Operation &operation(int id) const { return operations_[static_cast<size_t>(id)]; }

  private:
    explicit Tracer(std::vector<CacheSpec> cache);
    bool is_encoder() const; // it writes the layers of a source text
    void check_written(const Trace *encoder) const;
    std::vector<CacheSpec> cache_;
    std::vector<bool> written_; // by layer
    std::vector<std::vector<bool>> claimed_; // by layer and state
    std::vector<Operation> operations_;
    std::vector<Tap> taps_;
    int64_t n_features_ = 0;
    bool finished_ = false;
};

} // namespace quire
