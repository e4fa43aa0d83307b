// A model's weights on a device: copies, except of weights that are there already.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/device.h"
#include "graph/trace/trace.h"

namespace quire {

// Matrices that may lie together: of one type and width, read once, without biases.  Their results are heads that are
// normed, rotated or attended to, for which ggml wants no row to follow the one before it; or those of gate and up,
// which ggml takes together as well, but has a better way for one row.
struct MatrixGroup {
    std::vector<WeightRef> weights;
    bool is_gate = false;
};
class DeviceWeights {
  public:
    explicit DeviceWeights(const Backend &backend) : backend_(backend) {}
    // Copies of all of these side by side; matrices of each group follow each other as if they were one
    // (graph/run/merged_products.h).  CapacityError when there is no memory.
    void copy(const std::vector<WeightRef> &weights, const std::vector<MatrixGroup> &groups = {});
    // The matrix that has all of a group's, and which of its rows are the weight's first.
    struct Merged {
        ggml_tensor *whole;
        int64_t first_row;
        bool is_gate; // gate and up
    };
    std::optional<Merged> merged(const WeightRef &weight) const;
    // A weight without a copy gets one of its own: before any step, as the largest graph is made then.
    const Tensor &of(const WeightRef &weight);
    size_t size_bytes() const { return size_bytes_; }

  private:
    struct Copy {
        WeightRef weight; // kept, as its address is the key
        Tensor tensor;
        std::shared_ptr<const Tensor> whole = nullptr; // its group's
        int64_t first_row = 0;
        bool is_gate = false;
    };
    // Matrices that lie together, or one.
    struct Room {
        std::vector<WeightRef> weights;
        DType dtype;
        Shape shape;
        bool is_gate = false;
    };
    std::vector<Room> rooms_for(const std::vector<WeightRef> &weights, const std::vector<MatrixGroup> &groups) const;
    const Backend &backend_;
    std::map<const Weight *, Copy> copies_;
    size_t size_bytes_ = 0;
};

} // namespace quire
