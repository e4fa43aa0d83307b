#include "graph/run/merged_products.h"

#include <algorithm>
#include <map>
#include <utility>

#include "graph/operations/fused/elements.h"
#include "graph/operations/fused/linear.h"
#include "graph/operations/fused/reshape.h"
#include "graph/operations/fused/rms_norm.h"
#include "graph/operations/fused/rope.h"

namespace quire {
namespace {

// ggml's CUDA backend pads rows of quantized matrices to these, and zeros what is behind the last one.
constexpr int64_t padded_columns = 512;

using Users = std::vector<std::vector<int>>; // by operation, -1: the caller

bool becomes_heads(const Trace &trace, const Users &users, int linear) {
    auto operation = [&](int i) -> const Operation & { return trace.operations[static_cast<size_t>(i)]; };
    auto all_users = [&](int i, const auto &fits) {
        const std::vector<int> &of = users[static_cast<size_t>(i)];
        return !of.empty() && std::ranges::all_of(of, [&](int user) { return user >= 0 && fits(user); });
    };
    auto reads_heads = [&](int user) {
        return operation(user).as<RmsNorm>() || operation(user).as<Rope>() ||
               operation(user).kind->attended_layer() >= 0;
    };
    return all_users(linear, [&](int user) { return operation(user).as<Reshape>() && all_users(user, reads_heads); });
}

// The matrix of a product without bias whose rows are not padded; null where the operation is another.
const WeightRef *matrix_of(const Operation &operation) {
    const auto *linear = operation.as<Linear>();
    if (linear == nullptr || linear->bias() || linear->weight()->tensor.shape()[1] % padded_columns != 0)
        return nullptr;
    return &linear->weight();
}

void add_heads(const Trace &trace, const Users &users, std::vector<MatrixGroup> &found) {
    std::map<std::pair<int, DType>, MatrixGroup> groups; // by input and type
    for (size_t i = 0; i < trace.operations.size(); ++i)
        if (const WeightRef *matrix = matrix_of(trace.operations[i]))
            if (becomes_heads(trace, users, static_cast<int>(i)))
                groups[{trace.operations[i].inputs[0], (*matrix)->tensor.dtype()}].weights.push_back(*matrix);
    for (auto &[key, group] : groups) found.push_back(std::move(group));
}

void add_gates(const Trace &trace, const Users &users, std::vector<MatrixGroup> &found) {
    for (const Operation &glu : trace.operations) {
        if (!glu.as<Glu>()) continue;
        const Operation &gate = trace.operations[static_cast<size_t>(glu.inputs[0])],
                        &up = trace.operations[static_cast<size_t>(glu.inputs[1])];
        const WeightRef *of_gate = matrix_of(gate), *of_up = matrix_of(up);
        if (of_gate == nullptr || of_up == nullptr || gate.inputs[0] != up.inputs[0]) continue;
        const Tensor &first = (*of_gate)->tensor, &second = (*of_up)->tensor;
        const bool only_here =
            std::ranges::all_of(glu.inputs, [&](int input) { return users[static_cast<size_t>(input)].size() == 1; });
        if (only_here && first.dtype() == second.dtype() && first.shape() == second.shape())
            found.push_back({{*of_gate, *of_up}, true});
    }
}

} // namespace

std::vector<MatrixGroup> products_together(const std::vector<const Trace *> &traces) {
    std::map<const Weight *, int> n_reads;
    std::vector<MatrixGroup> found;
    for (const Trace *trace : traces) {
        for (const Operation &operation : trace->operations)
            for (const WeightRef &weight : operation.kind->matrices()) ++n_reads[weight.get()];
        const Users users = readers_of(*trace);
        add_heads(*trace, users, found);
        add_gates(*trace, users, found);
    }
    std::erase_if(found, [&](MatrixGroup &group) {
        const size_t n = group.weights.size();
        std::erase_if(group.weights, [&](const WeightRef &weight) { return n_reads[weight.get()] > 1; });
        return group.weights.size() < 2 || (group.is_gate && group.weights.size() < n);
    });
    return found;
}

std::vector<WeightRef> matrices_of_products(const std::vector<const Trace *> &traces) {
    std::vector<WeightRef> found;
    for (const Trace *trace : traces)
        for (const Operation &operation : trace->operations)
            if (const auto *linear = operation.as<Linear>())
                found.push_back(linear->weight());
            else // experts
                std::ranges::copy_if(operation.kind->matrices(), std::back_inserter(found),
                                     [](const WeightRef &weight) { return weight->tensor.shape().size() == 3; });
    return found;
}

} // namespace quire
