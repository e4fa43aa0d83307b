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

// Adds the changes of the adapters of one level to a product or a lookup.
class LevelSum {
  public:
    LevelSum(const StockParts &parts, const DeviceAdapters::Stacks &stacks, AdapterPlace place)
        : context_(parts.context), stacks_(stacks), n_rows_(parts.lead),
          input_(input_of(*parts.graph, place, parts.lead)) {}

    ggml_tensor *product(ggml_tensor *rows, ggml_tensor *made, ggml_tensor *bias) {
        using Stacks = DeviceAdapters;
        if (stacks_[Stacks::b]) {
            ggml_tensor *h = ggml_mul_mat_id(context_, stacks_[Stacks::a]->handle(), rows, input_.slots);
            made = plus(made, by(Stacks::b, ggml_mul(context_, h, input_.scales)));
        }
        if (stacks_[Stacks::whole]) made = plus(made, by(Stacks::whole, ggml_mul(context_, rows, input_.scales)));
        if (stacks_[Stacks::factors]) {
            ggml_tensor *plain = bias == nullptr ? made : ggml_sub(context_, made, bias);
            made = plus(made, ggml_mul(context_, plain, row_of(Stacks::factors)));
        }
        if (stacks_[Stacks::bias]) made = plus(made, ggml_mul(context_, row_of(Stacks::bias), flat_scales()));
        return made;
    }

    // `ids`: of the rows in the tables of all slots.
    ggml_tensor *lookup(ggml_tensor *ids, ggml_tensor *made) {
        using Stacks = DeviceAdapters;
        const auto rows = [&](Stacks::Part part) {
            ggml_tensor *stack = stacks_[part]->handle();
            ggml_tensor *found = ggml_get_rows(
                context_, ggml_reshape_2d(context_, stack, stack->ne[0], stack->ne[1] * stack->ne[2]), ids);
            return ggml_mul(context_, found, flat_scales());
        };
        if (stacks_[Stacks::a]) {
            ggml_tensor *h = rows(Stacks::a);
            made = plus(made, by(Stacks::b, ggml_reshape_3d(context_, h, h->ne[0], 1, n_rows_)));
        }
        if (stacks_[Stacks::whole]) made = plus(made, rows(Stacks::whole));
        return made;
    }

  private:
    ggml_tensor *by(DeviceAdapters::Part part, ggml_tensor *rows) {
        return ggml_mul_mat_id(context_, stacks_[part]->handle(), rows, input_.slots);
    }
    ggml_tensor *plus(ggml_tensor *made, ggml_tensor *added) {
        return ggml_add(context_, made, ggml_reshape_2d(context_, added, added->ne[0], n_rows_));
    }
    // The row of each row's adapter, in a stack with one row a slot.
    ggml_tensor *row_of(DeviceAdapters::Part part) {
        ggml_tensor *stack = stacks_[part]->handle();
        return ggml_get_rows(context_, ggml_reshape_2d(context_, stack, stack->ne[0], stack->ne[2]),
                             ggml_reshape_1d(context_, input_.slots, n_rows_));
    }
    ggml_tensor *flat_scales() { return ggml_reshape_2d(context_, input_.scales, 1, n_rows_); }
    ggml_context *context_;
    const DeviceAdapters::Stacks &stacks_;
    int64_t n_rows_;
    const AdapterInput &input_;
};

} // namespace

ggml_tensor *with_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *x, ggml_tensor *made,
                           ggml_tensor *bias) {
    StockGraph &graph = *parts.graph;
    const int n_levels = graph.out.key.n_adapters;
    const DeviceAdapters::Stacks *stacks = n_levels == 0 ? nullptr : graph.adapters->find({weight, false});
    if (stacks == nullptr) return made;
    if (!ggml_is_contiguous(x)) x = ggml_cont(parts.context, x);
    ggml_tensor *rows = ggml_reshape_3d(parts.context, x, x->ne[0], 1, parts.lead);
    for (int level = 0; level < n_levels; ++level)
        made = LevelSum(parts, *stacks, {parts.shape.lead, level}).product(rows, made, bias);
    return made;
}

ggml_tensor *with_table_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *ids, ggml_tensor *made) {
    StockGraph &graph = *parts.graph;
    const int n_levels = graph.out.key.n_adapters;
    if (n_levels == 0 || ids != graph.out.inputs.tokens) return made;
    const DeviceAdapters::Stacks *stacks = graph.adapters->find({weight, true});
    if (stacks == nullptr) return made;
    const int64_t n_table = weight->tensor.shape()[0];
    for (int level = 0; level < n_levels; ++level) {
        const AdapterPlace place{parts.shape.lead, level};
        LevelSum sum(parts, *stacks, place);
        ggml_tensor *&rows = graph.out.inputs.adapters[place].table_rows[n_table];
        if (rows == nullptr) rows = graph.new_input(GGML_TYPE_I32, {parts.lead}, "adapter table rows");
        made = sum.lookup(rows, made);
    }
    return made;
}

size_t adapter_tensors(const GraphKey &key) {
    return key.n_adapters == 0 ? 0 : 4 + 26 * static_cast<size_t>(key.n_adapters);
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
            const auto [begin, end] = batch.rows_of(s, place.lead == Lead::rows, use.skipped);
            std::fill(slots + begin, slots + end, step.adapters.slot(use));
            std::fill(scales + begin, scales + end, use.scale);
        }
        for (const auto &[n_table, target] : input.table_rows) {
            auto *rows = step.memory.host<int32_t>(target);
            std::fill(rows, rows + target->ne[0], 0);
            for (size_t i = 0; i < batch.tokens.size(); ++i)
                rows[i] = static_cast<int32_t>(slots[i] * n_table + batch.tokens[i]);
        }
    }
}

} // namespace quire
