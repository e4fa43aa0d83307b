// The adapters of a step on a device: matrices A and B of all adapters, stacked, so that one graph serves any of them.
// A row names its adapter by a slot of the stacks.  Slot 0 holds zeros, for rows without.  An adapter with lengths (DoRA)
// has a slot for each scale.
#pragma once

#include <ggml.h>

#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/device.h"
#include "graph/trace/low_rank_adapter.h"
#include "graph/trace/step_batch.h"

namespace quire {

class DeviceAdapters {
  public:
    // The parts of DevicePair, and factors of rows less 1, [1, n_out]; each [slots, rows, columns].  Those that no adapter
    // has are empty.  Ranks are padded with zeros.
    enum Part { a, b, whole, bias, factors, n_parts };
    using Stacks = std::array<std::optional<Tensor>, n_parts>;
    explicit DeviceAdapters(Device device) : device_(device) {}
    // Adapters that no step needs stay within so many bytes; 0: no limit.
    void keep_within(size_t size_bytes) { budget_bytes_ = size_bytes; }
    // Called once, with the matrices that graphs of the device multiply by; they outlive it.
    void serve(const std::vector<WeightRef> &weights) {
        for (const WeightRef &weight : weights) products_.insert(weight.get());
    }
    // Copies the step's adapters that are not there, in place of the least recently used.  True if the stacks have moved:
    // graphs that read them are then void.  CapacityError if memory does not suffice; nothing is there then.
    bool prepare(const StepBatch &batch);
    // The adapters that a row of the step has at most.
    static int n_levels(const StepBatch &batch);
    // Null for a product or lookup that no adapter changes.
    const Stacks *find(const AdaptedUse &use) const;
    int32_t slot(const AdapterUse &use) const; // a prepared one's
    size_t size_bytes() const { return size_bytes_; }

  private:
    struct Shape { // a part's
        DType dtype = DType::f32;
        int64_t n_rows = 0, n_columns = 0; // none: no adapter has it
    };
    using Shapes = std::array<Shape, n_parts>;
    struct Slot {
        uint64_t number = 0, used = 0; // the adapter's; when it was last used, by steps
        float scale = 0; // for an adapter with lengths
        std::set<AdaptedUse> filled = {};
    };
    using Adapters = std::vector<AdapterUse>; // scales are 0 where the slot does not depend on them
    static Adapters adapters_of(const StepBatch &batch);
    bool serves(const AdaptedUse &use) const { return products_.contains(use.weight); }
    static Shapes shapes_of(const AdaptedUse &use, const DevicePair &pair);
    bool has_room(const Adapters &wanted) const;
    void rebuild(const Adapters &wanted);
    void allocate(size_t n_slots);
    size_t needed_bytes(size_t n_slots) const;
    void add_shapes(const Adapters &wanted);
    void fill(size_t slot, const AdapterUse &use);
    Slot *find_slot(const AdapterUse &use);
    Device device_;
    std::map<AdaptedUse, Shapes> shapes_;
    std::map<AdaptedUse, Stacks> stacks_;
    std::set<const Weight *> products_;
    std::vector<Slot> slots_; // the first is of no adapter
    uint64_t n_steps_ = 0;
    std::atomic<size_t> size_bytes_ = 0; // other threads may ask
    size_t budget_bytes_ = 0;
};

} // namespace quire
