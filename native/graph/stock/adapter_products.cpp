#include "graph/stock/adapter_products.h"

#include <algorithm>

#include "graph/stock/device_adapters.h"
#include "graph/stock/step_inputs.h"
#include "graph/stock/stock_parts.h"

namespace quire {
namespace {

const AdapterInput &input_of(StockGraph &graph, AdapterPlace place, int64_t n_rows) {
    AdapterInput &input = graph.out.inputs.adapters[place];
    if (input.slots == nullptr) {
        input.slots = graph.new_input(GGML_TYPE_I32, {1, n_rows}, "adapter slots");
        input.scales = graph.new_input(GGML_TYPE_F32, {1, 1, n_rows}, "adapter scales");
    }
    return input;
}

} // namespace

ggml_tensor *with_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *x, ggml_tensor *made) {
    StockGraph &graph = *parts.graph;
    const int n_levels = graph.out.key.n_adapters;
    const DeviceAdapters::Stacks *stacks = n_levels == 0 ? nullptr : graph.adapters->find(weight);
    if (stacks == nullptr) return made;
    ggml_context *context = parts.context;
    const int64_t n_rows = parts.lead;
    if (!ggml_is_contiguous(x)) x = ggml_cont(context, x);
    ggml_tensor *rows = ggml_reshape_3d(context, x, x->ne[0], 1, n_rows);
    for (int level = 0; level < n_levels; ++level) {
        const AdapterInput &input = input_of(graph, {parts.shape.lead, level}, n_rows);
        ggml_tensor *h = ggml_mul_mat_id(context, stacks->a.handle(), rows, input.slots);
        h = ggml_mul(context, h, input.scales);
        ggml_tensor *added = ggml_mul_mat_id(context, stacks->b.handle(), h, input.slots);
        made = ggml_add(context, made, ggml_reshape_2d(context, added, added->ne[0], n_rows));
    }
    return made;
}

size_t adapter_tensors(const GraphKey &key) {
    return key.n_adapters == 0 ? 0 : 2 + 8 * static_cast<size_t>(key.n_adapters);
}

void fill_adapter_inputs(const StepToFill &step) {
    const StepBatch &batch = step.batch;
    for (const auto &[place, input] : step.graph.inputs.adapters) {
        auto *slots = step.memory.host<int32_t>(input.slots);
        auto *scales = step.memory.host<float>(input.scales);
        std::fill(slots, slots + ggml_nelements(input.slots), 0);
        std::fill(scales, scales + ggml_nelements(input.scales), 0.0F);
        const auto level = static_cast<size_t>(place.level);
        for (size_t s = 0; s < batch.adapters.size(); ++s) {
            if (level >= batch.adapters[s].size()) continue;
            const AdapterUse &use = batch.adapters[s][level];
            const auto [begin, end] = batch.rows_of(s, place.lead == Lead::rows);
            std::fill(slots + begin, slots + end, step.adapters.slot(*use.adapter));
            std::fill(scales + begin, scales + end, use.scale);
        }
    }
}

} // namespace quire
