#include "graph/graph_key.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

// Sizes up to and with the limit.
std::vector<int> up_to(std::vector<int> sizes, int limit) {
    std::erase_if(sizes, [limit](int size) { return size >= limit; });
    sizes.push_back(limit);
    return sizes;
}

int smallest(const std::vector<int> &sizes, int wanted, const char *what) {
    auto found = std::lower_bound(sizes.begin(), sizes.end(), wanted);
    if (found == sizes.end())
        throw InternalError("graph", cat("a step must have at most ", sizes.back(), " ", what, " but has ", wanted));
    return *found;
}

} // namespace

GraphBuckets::GraphBuckets(GraphLimits limits) : limits_(limits) {
    if (limits.max_rows < 1 || limits.max_logit_rows < 1 || limits.max_kv_tokens < 1) {
        throw ShapeError("graph", cat("limits must be positive but are ", limits.max_rows, " rows, ",
                                      limits.max_logit_rows, " logit rows, ", limits.max_kv_tokens, " cached tokens"));
    }
    // Graphs multiply with the third size, so the steps are wide.
    tokens_ = up_to({1, 4, 16, 64, 256, 1024, 4096}, limits.max_rows);
    rows_ = up_to({1, 16}, limits.max_logit_rows);
    for (int64_t size = 256; size < limits.max_kv_tokens; size *= 4) kv_.push_back(static_cast<int>(size));
    kv_.push_back(limits.max_kv_tokens);
}

std::vector<int> GraphBuckets::row_sizes(int n_tokens) const {
    std::vector<int> sizes;
    for (int size : rows_) {
        if (size < n_tokens) sizes.push_back(size);
    }
    // Every token's logits: decoding alone, and prompt log-probabilities.
    sizes.push_back(std::min(n_tokens, limits_.max_logit_rows));
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
}

std::vector<GraphKey> GraphBuckets::keys() const {
    std::vector<GraphKey> keys;
    for (int n_tokens : tokens_) {
        for (int n_rows : row_sizes(n_tokens)) {
            for (int n_kv : kv_) keys.push_back({n_tokens, n_rows, n_kv});
        }
    }
    std::sort(keys.rbegin(), keys.rend());
    return keys;
}

GraphKey GraphBuckets::fit(int n_tokens, int n_rows, int n_kv) const {
    int tokens = smallest(tokens_, n_tokens, "tokens");
    int rows = smallest(row_sizes(tokens), n_rows, "logit rows");
    return {tokens, rows, smallest(kv_, n_kv, "cached tokens")};
}

} // namespace quire
