#include "graph/merged_products.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "graph/operations/linear.h"
#include "graph/operations/reshape.h"
#include "graph/operations/rms_norm.h"
#include "graph/operations/rope.h"

namespace quire {
namespace {

// ggml's CUDA backend pads rows of quantized matrices to these, and zeros what is behind the last one.
constexpr int64_t padded_columns = 512;

using Users = std::vector<std::vector<int>>; // by operation

Users users_of(const Trace &trace) {
    Users users(trace.operations.size());
    for (size_t i = 0; i < trace.operations.size(); ++i)
        for (int input : trace.operations[i].inputs) users[static_cast<size_t>(input)].push_back(static_cast<int>(i));
    return users;
}

// Values that somebody reads who is not an operation of the trace.
std::set<int> read_outside(const Trace &trace) {
    std::set<int> values{trace.output, trace.hidden};
    for (const Tap &tap : trace.taps) values.insert(tap.operation);
    for (const Left &left : trace.left) values.insert(left.operation);
    return values;
}

bool becomes_heads(const Trace &trace, const Users &users, const std::set<int> &outside, int linear) {
    auto operation = [&](int i) -> const Operation & { return trace.operations[static_cast<size_t>(i)]; };
    auto all_users = [&](int i, const auto &fits) {
        const std::vector<int> &of = users[static_cast<size_t>(i)];
        return !outside.contains(i) && !of.empty() && std::ranges::all_of(of, fits);
    };
    auto reads_heads = [&](int user) {
        return operation(user).as<RmsNorm>() || operation(user).as<Rope>() || operation(user).kind->attended_layer() >= 0;
    };
    return all_users(linear, [&](int user) { return operation(user).as<Reshape>() && all_users(user, reads_heads); });
}

using Groups = std::map<std::pair<int, DType>, std::vector<WeightRef>>; // by input and type

Groups groups_of(const Trace &trace) {
    const Users users = users_of(trace);
    const std::set<int> outside = read_outside(trace);
    Groups groups;
    for (size_t i = 0; i < trace.operations.size(); ++i) {
        const Operation &operation = trace.operations[i];
        const auto *linear = operation.as<Linear>();
        if (linear == nullptr || linear->bias() || !becomes_heads(trace, users, outside, static_cast<int>(i))) continue;
        const Tensor &matrix = linear->weight()->tensor;
        if (matrix.shape()[1] % padded_columns == 0)
            groups[{operation.inputs[0], matrix.dtype()}].push_back(linear->weight());
    }
    return groups;
}

} // namespace

std::vector<std::vector<WeightRef>> products_together(const std::vector<const Trace *> &traces) {
    std::map<const Weight *, int> n_reads;
    for (const Trace *trace : traces)
        for (const Operation &operation : trace->operations)
            for (const WeightRef &weight : operation.kind->matrices()) ++n_reads[weight.get()];
    std::vector<std::vector<WeightRef>> found;
    for (const Trace *trace : traces) {
        for (auto &[key, group] : groups_of(*trace)) {
            std::erase_if(group, [&](const WeightRef &weight) { return n_reads[weight.get()] > 1; });
            if (group.size() > 1) found.push_back(std::move(group));
        }
    }
    return found;
}

} // namespace quire
