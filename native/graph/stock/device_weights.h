// The weights of a model on a device: copies, except of weights that already are there.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/device.h"
#include "graph/stock/batch_matrices.h"
#include "graph/trace/trace.h"

namespace quire {

// Matrices that may be stored as one: of one type and width, read by one operation each, without biases.  They compute
// either heads, whose operators accept strided rows, or gate and up, which ggml's operator takes as one tensor (for a
// single row ggml has a faster way).
struct MatrixGroup {
    std::vector<WeightRef> weights;
    bool is_gate = false;
};
class DeviceWeights {
  public:
    explicit DeviceWeights(const Backend &backend) : backend_(backend) {}
    // Copies all weights into one buffer; the matrices of a group are contiguous, like one matrix
    // (graph/run/merged_products.h).  CapacityError if memory is insufficient.
    void copy(const std::vector<WeightRef> &weights, const std::vector<MatrixGroup> &groups = {});
    // The matrix of the whole group, and the first row of one of its weights.
    struct Merged {
        ggml_tensor *whole;
        int64_t first_row;
        bool is_gate; // gate and up
    };
    std::optional<Merged> merged(const WeightRef &weight) const;
    // Copies the weight if it has no copy yet.  That happens before any step, when the largest graph is built.
    const Tensor &of(const WeightRef &weight);
    // Arranges those of the copied matrices that products of a few rows may read so (graph/stock/batch_matrices.h).
    void arrange(const std::vector<WeightRef> &matrices);
    const BatchMatrices::Arranged *arranged(const ggml_tensor *matrix) const { return arranged_.find(matrix); }
    size_t size_bytes() const { return size_bytes_ + arranged_.size_bytes(); }

  private:
    struct Copy {
        WeightRef weight; // kept, as its address is the key
        Tensor tensor;
        std::shared_ptr<const Tensor> whole = nullptr; // the matrix of its group
        int64_t first_row = 0;
        bool is_gate = false;
    };
    // A group of matrices, or a single one.
    struct Room {
        std::vector<WeightRef> weights;
        DType dtype;
        Shape shape;
        bool is_gate = false;
    };
    std::vector<Room> rooms_for(const std::vector<WeightRef> &weights, const std::vector<MatrixGroup> &groups) const;
    const Backend &backend_;
    std::map<const Weight *, Copy> copies_;
    BatchMatrices arranged_;
    size_t size_bytes_ = 0;
};

} // namespace quire
