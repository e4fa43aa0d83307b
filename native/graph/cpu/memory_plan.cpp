#include "graph/cpu/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace quire {
namespace {

size_t aligned(size_t bytes) {
    return (bytes + memory_plan_alignment_bytes - 1) / memory_plan_alignment_bytes * memory_plan_alignment_bytes;
}

} // namespace

MemoryPlan plan_memory(const std::vector<Lifetime> &values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return values[a].size_bytes > values[b].size_bytes; });
    MemoryPlan plan{std::vector<size_t>(values.size(), 0), 0};
    std::vector<size_t> placed; // by offset
    for (size_t i : order) {
        size_t offset = 0;
        for (size_t other : placed) {
            const bool meet = values[other].first <= values[i].last && values[i].first <= values[other].last;
            if (!meet) continue;
            if (offset + aligned(values[i].size_bytes) <= plan.offsets[other]) break;
            offset = std::max(offset, plan.offsets[other] + aligned(values[other].size_bytes));
        }
        plan.offsets[i] = offset;
        plan.size_bytes = std::max(plan.size_bytes, offset + aligned(values[i].size_bytes));
        placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                       [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                      i);
    }
    return plan;
}

} // namespace quire
