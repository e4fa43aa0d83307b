// The adapters of a step on a device: matrices A and B of all adapters, stacked, so that one graph serves any of them.
// A row names its adapter by a slot of the stacks.  Slot 0 holds zeros, for rows without.
#pragma once

#include <ggml.h>

#include <map>
#include <set>
#include <vector>

#include "core/device.h"
#include "graph/trace/low_rank_adapter.h"
#include "graph/trace/step_batch.h"

namespace quire {

class DeviceAdapters {
  public:
    struct Stacks {
        Tensor a, b; // [slots, rank, n_in], [slots, n_out, rank]; ranks are padded with zeros
        int64_t rank() const { return a.shape()[1]; }
    };
    explicit DeviceAdapters(Device device) : device_(device) {}
    // Called once, with the matrices that graphs of the device multiply by; they outlive it.
    void serve(const std::vector<WeightRef> &weights) {
        for (const WeightRef &weight : weights) products_.insert(weight.get());
    }
    // Copies the step's adapters that are not there, in place of the least recently used.  True if the stacks have moved:
    // graphs that read them are then void.  CapacityError if memory does not suffice; nothing is there then.
    bool prepare(const StepBatch &batch);
    // The adapters that a row of the step has at most.
    static int n_levels(const StepBatch &batch);
    // Null for a matrix that no adapter changes.
    const Stacks *find(const Weight *weight) const;
    int32_t slot(const LowRankAdapter &adapter) const; // a prepared one's
    size_t size_bytes() const { return size_bytes_; }

  private:
    struct Shape { // one weight's stacks
        DType dtype;
        int64_t rank, n_in, n_out;
    };
    struct Slot {
        uint64_t number = 0, used = 0; // the adapter's; when it was last used, by steps
        std::vector<const Weight *> filled = {};
    };
    using Adapters = std::vector<const LowRankAdapter *>;
    bool has_room(const Adapters &wanted) const;
    void rebuild(const Adapters &wanted);
    void allocate(size_t n_slots);
    void add_shapes(const Adapters &wanted);
    void fill(size_t slot, const LowRankAdapter &adapter);
    Slot *find_slot(const LowRankAdapter &adapter);
    Device device_;
    std::map<const Weight *, Shape> shapes_;
    std::map<const Weight *, Stacks> stacks_;
    std::set<const Weight *> products_;
    std::vector<Slot> slots_; // the first is of no adapter
    uint64_t n_steps_ = 0;
    size_t size_bytes_ = 0;
};

} // namespace quire
