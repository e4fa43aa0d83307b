#include "graph/border.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>

#include "core/device_faults.h"
#include "graph/input_memory.h"
#include "graph/memory_plan.h"
#include "graph/shape_checks.h"
#include "graph/stock_parts.h"

namespace quire {
namespace {

std::vector<Border *> those(const Borders &borders, bool Border::*is_wanted) {
    std::vector<Border *> found;
    for (const std::shared_ptr<Border> &border : borders)
        if ((*border).*is_wanted) found.push_back(border.get());
    return found;
}

// Where each lies, by its pieces.  A place is a multiple of the alignment.
MemoryPlan planned(const std::vector<Border *> &borders, int max_rows, int max_logit_rows, size_t alignment) {
    std::vector<Lifetime> lifetimes;
    for (const Border *border : borders) {
        const int n_rows = border->shape.lead == Lead::tokens ? max_rows : max_logit_rows;
        const size_t bytes = static_cast<size_t>(border->row_floats() * n_rows) * sizeof(float);
        lifetimes.push_back({(bytes + alignment - 1) / alignment * alignment, border->first, border->last});
    }
    return plan_memory(lifetimes);
}

} // namespace

int64_t Border::row_floats() const { return row_size(shape); }

ggml_tensor *Border::device_rows(ggml_context *context, int64_t lead) const {
    const std::array<int64_t, 4> ne = stock_dims(shape, lead);
    size_t strides[3];
    size_t stride = sizeof(float);
    for (size_t i = 0; i < 3; ++i) strides[i] = stride *= static_cast<size_t>(ne[i]);
    return ggml_view_4d(context, device->handle(), ne[0], ne[1], ne[2], ne[3], strides[0], strides[1], strides[2], 0);
}

void BorderMemory::FreeBuffer::operator()(ggml_backend_buffer *buffer) const { free_buffer(buffer); }

BorderMemory BorderMemory::in_host(const Borders &borders, const Backend &device, int max_rows, int max_logit_rows) {
    BorderMemory made;
    const std::vector<Border *> wanted = those(borders, &Border::in_host);
    if (wanted.empty()) return made;
    const MemoryPlan plan = planned(wanted, max_rows, max_logit_rows, memory_plan_alignment_bytes);
    made.size_bytes_ = plan.size_bytes;
    if (device.measures()) return made;
    made.host_.reset(new_transfer_buffer(device, plan.size_bytes));
    auto *base = static_cast<uint8_t *>(ggml_backend_buffer_get_base(made.host_.get()));
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i]->host = reinterpret_cast<float *>(base + plan.offsets[i]);
    return made;
}

BorderMemory BorderMemory::on_device(const Borders &borders, const Backend &device, int max_rows, int max_logit_rows) {
    BorderMemory made;
    const std::vector<Border *> wanted = those(borders, &Border::on_device);
    if (wanted.empty()) return made;
    const size_t alignment = std::max(memory_plan_alignment_bytes, device.device().alignment_bytes());
    const MemoryPlan plan = planned(wanted, max_rows, max_logit_rows, alignment);
    made.size_bytes_ = plan.size_bytes;
    made.device_ = device.measures() ? Buffer::measured(device.device(), plan.size_bytes)
                                     : Buffer::allocate(device.device(), plan.size_bytes);
    for (size_t i = 0; i < wanted.size(); ++i) {
        Border &border = *wanted[i];
        const int64_t n_rows = border.shape.lead == Lead::tokens ? max_rows : max_logit_rows;
        border.device = Tensor::in_buffer(DType::f32, {n_rows, border.row_floats()}, made.device_, plan.offsets[i]);
    }
    return made;
}

} // namespace quire
