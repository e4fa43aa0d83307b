#include "graph/stock/graph_key.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

// The sizes up to and including the limit.
std::vector<int> up_to(std::vector<int> sizes, int limit) {
    std::erase_if(sizes, [limit](int size) { return size >= limit; });
    sizes.push_back(limit);
    return sizes;
}

int smallest(const std::vector<int> &sizes, int wanted, const char *what) {
    auto found = std::lower_bound(sizes.begin(), sizes.end(), wanted);
    if (found == sizes.end())
        throw InternalError("graph", cat("a step has ", wanted, " ", what, ": expected at most ", sizes.back()));
    return *found;
}

} // namespace

GraphBuckets::GraphBuckets(GraphLimits limits, bool on_device) : limits_(limits) {
    if (limits.max_rows < 1 || limits.max_logit_rows < 1 || limits.max_kv_tokens < 1) {
        throw ShapeError("graph", cat("limits are ", limits.max_rows, " rows, ", limits.max_logit_rows, " logit rows, ",
                                      limits.max_kv_tokens, " cached tokens: expected positive numbers"));
    }
    std::vector<int> sizes{1, 4, 16, 64, 256, 1024, 4096};
    if (on_device) {
        sizes.clear();
        for (int n = 1; n < limits.max_rows; n = sizes.back() + 1) sizes.push_back(padded_rows(n, limits.max_rows));
    }
    tokens_ = up_to(std::move(sizes), limits.max_rows);
}

int GraphBuckets::tokens(int n_tokens) const { return smallest(tokens_, n_tokens, "tokens"); }

int GraphBuckets::logit_rows(int n_tokens, int n_rows) const {
    // One, some, or every token's; the last for pure decoding and prompt log-probabilities.
    const int most = std::min(n_tokens, limits_.max_logit_rows);
    return smallest(up_to({1, 16}, most), n_rows, "logit rows");
}

} // namespace quire
