#include "graph/run/boundary_memory.h"

#include <ggml-backend.h>

#include <algorithm>

#include "core/device_faults.h"
#include "graph/cpu/memory_plan.h"
#include "graph/stock/input_memory.h"

namespace quire {
namespace {

std::vector<Boundary *> those(const Boundaries &boundaries, bool Boundary::*is_wanted) {
    std::vector<Boundary *> found;
    for (const std::shared_ptr<Boundary> &boundary : boundaries)
        if ((*boundary).*is_wanted) found.push_back(boundary.get());
    return found;
}

// Where each lies, by its pieces.  A place is a multiple of the alignment.
MemoryPlan planned(const std::vector<Boundary *> &boundaries, int max_rows, int max_logit_rows, size_t alignment) {
    std::vector<Lifetime> lifetimes;
    for (const Boundary *boundary : boundaries) {
        const int n_rows = boundary->shape.lead == Lead::tokens ? max_rows : max_logit_rows;
        const size_t bytes = static_cast<size_t>(boundary->row_floats() * n_rows) * sizeof(float);
        lifetimes.push_back({(bytes + alignment - 1) / alignment * alignment, boundary->first, boundary->last});
    }
    return plan_memory(lifetimes);
}

} // namespace

void BoundaryMemory::FreeBuffer::operator()(ggml_backend_buffer *buffer) const { free_buffer(buffer); }

BoundaryMemory BoundaryMemory::in_host(const Boundaries &boundaries, const Backend &device, int max_rows,
                                       int max_logit_rows) {
    BoundaryMemory made;
    const std::vector<Boundary *> wanted = those(boundaries, &Boundary::in_host);
    if (wanted.empty()) return made;
    const MemoryPlan plan = planned(wanted, max_rows, max_logit_rows, memory_plan_alignment_bytes);
    made.size_bytes_ = plan.size_bytes;
    if (device.measures()) return made;
    made.host_.reset(new_transfer_buffer(device, plan.size_bytes));
    auto *base = static_cast<uint8_t *>(ggml_backend_buffer_get_base(made.host_.get()));
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i]->host = reinterpret_cast<float *>(base + plan.offsets[i]);
    return made;
}

BoundaryMemory BoundaryMemory::on_device(const Boundaries &boundaries, const Backend &device, int max_rows,
                                         int max_logit_rows) {
    BoundaryMemory made;
    const std::vector<Boundary *> wanted = those(boundaries, &Boundary::on_device);
    if (wanted.empty()) return made;
    const size_t alignment = std::max(memory_plan_alignment_bytes, device.device().alignment_bytes());
    const MemoryPlan plan = planned(wanted, max_rows, max_logit_rows, alignment);
    made.size_bytes_ = plan.size_bytes;
    made.device_ = device.measures() ? Buffer::measured(device.device(), plan.size_bytes)
                                     : Buffer::allocate(device.device(), plan.size_bytes);
    for (size_t i = 0; i < wanted.size(); ++i) {
        Boundary &boundary = *wanted[i];
        const int64_t n_rows = boundary.shape.lead == Lead::tokens ? max_rows : max_logit_rows;
        boundary.device = Tensor::in_buffer(DType::f32, {n_rows, boundary.row_floats()}, made.device_, plan.offsets[i]);
    }
    return made;
}

} // namespace quire
