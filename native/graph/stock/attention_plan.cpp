#include "graph/stock/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kv/kv_store.h"

namespace quire {
namespace {

// Costs are in bytes of memory traffic, the usual bottleneck of attention.  In the time of one byte a GPU does about 100
// multiplications; a kernel launch takes the time of a few megabytes; attention kernels hold 64 queries at a time.
constexpr double products_per_byte = 50, launch_bytes = 4e6;
constexpr int queries_together = 64;
constexpr int kv_step = 256; // ggml's attention on CUDA needs multiples
constexpr int few_rows = 16; // a sequence with more rows in a step is reading a prompt

// 1, 2, 4, 8, 16, 24, 32, 48, ...: a power of two, or one and a half.
int rounded_up(int n) {
    int size = 1;
    while (size < n) size *= 2;
    return size >= 32 && size / 4 * 3 >= n ? size / 4 * 3 : size;
}

int blocks_of(int n_tokens) { return (n_tokens + kv_block_tokens - 1) / kv_block_tokens; }

int largest_n(const std::vector<StreamRun> &rows) {
    int n = 1;
    for (const StreamRun &run : rows) n = std::max(n, run.n);
    return n;
}

// The most tokens in copies of blocks by sequence.
int most_copied(int pool_tokens) { return std::min(pool_tokens, std::max(pool_tokens / 4, 4096) / kv_step * kv_step); }

// The beginning of the stretch of the pool that holds [first, end).  Each beginning needs its own graph, so there are
// few; if a later one would save little, the stretch begins with the pool.
int beginning(int first, int end) {
    int step = kv_step;
    while (step * 8 <= end - first) step *= 2;
    const int begin = first / step * step;
    return begin * 4 >= end ? begin : 0;
}

} // namespace

int padded_rows(int n, int limit) { return std::min(rounded_up(n), limit); }

// At most a quarter more than needed, as padding is read, too.
int padded_kv_tokens(int n, int limit) {
    const int steps = (n + kv_step - 1) / kv_step;
    int size = 1;
    while (size * 8 <= steps) size *= 2;
    return std::min(kv_step * ((steps + size - 1) / size * size), limit);
}

AttentionPlanner::AttentionPlanner(const Trace &trace, const KvStore &store, const AttentionLimits &limits,
                                   bool on_device)
    : max_rows_(limits.max_rows), on_device_(on_device) {
    const CacheLayout &layout = store.layout();
    for (size_t g = 0; g < layout.groups().size(); ++g) {
        Group group;
        group.lifetime = layout.groups()[g].lifetime;
        int n_blocks = store.sizes().n_blocks[g];
        // Each sequence may have a block that is not full.
        if (!on_device) n_blocks = std::min(n_blocks, blocks_of(limits.max_kv_tokens) + limits.max_sequences);
        const int step = kv_step / kv_block_tokens;
        group.pool_tokens = (n_blocks + step - 1) / step * step * kv_block_tokens;
        groups_.push_back(group);
    }
    for (const Operation &operation : trace.operations) {
        const int layer = operation.kind->attended_layer();
        if (layer < 0) continue;
        const CacheRows &kept = layout.layers()[static_cast<size_t>(layer)].rows.value();
        Group &group = groups_[static_cast<size_t>(layout.group_of(layer).value())];
        const auto n_head = static_cast<double>(operation.shape.rest[0]);
        ++group.n_layers;
        group.token_bytes +=
            static_cast<double>(layout.k_block_bytes(layer) + layout.v_block_bytes(layer)) / kv_block_tokens;
        group.pair_products += n_head * (kept.head_dim + kept.v_head_dim);
        group.row_bytes += n_head * (kept.head_dim + kept.v_head_dim) * sizeof(float);
        group.n_head += n_head;
        group.shared_by = std::max(group.shared_by, static_cast<int>(n_head) / kept.n_kv_head);
    }
    for (Group &group : groups_) {
        const double n = std::max(1, group.n_layers);
        for (double *sum : {&group.token_bytes, &group.pair_products, &group.row_bytes, &group.n_head}) *sum /= n;
    }
}

double AttentionPlanner::cost(const Group &group, const AttentionPart &part) const {
    const double rows = part.n_rows(), pairs = rows * part.n_kv;
    const double cached = static_cast<double>(part.n_streams) * part.n_kv * group.token_bytes;
    const double passes = std::ceil(static_cast<double>(part.stream_rows) * group.shared_by / queries_together);
    double bytes = passes * cached;
    if (part.source == CachedRows::sequence && group.is_uncopied)
        return bytes + pairs * group.pair_products / products_per_byte;
    bytes += pairs * 2; // the mask
    if (part.source != CachedRows::pool) bytes += 2 * cached + 2 * launch_bytes;
    // Copies in f32 are written and read; scores are written and read three times.
    if (group.is_explicit) bytes += 4 * cached + 6 * pairs * group.n_head * sizeof(float);
    return bytes + pairs * group.pair_products / products_per_byte;
}

// All rows in one stream.
AttentionPlanner::Choice AttentionPlanner::together(const Group &group, CachedRows source, const Rows &rows, int n_rows,
                                                    int n_kv, int first_kv) const {
    const int limit = group.pool_tokens - first_kv;
    if (n_kv > limit)
        throw InternalError("attention", cat("a step sees ", n_kv, " cached tokens: expected at most ", limit));
    // The CPU's graphs are an oracle, not for speed, so few sizes suffice.
    int padded = padded_kv_tokens(n_kv, limit);
    if (!on_device_)
        for (padded = std::min(kv_step, limit); padded < n_kv;) padded = std::min(padded * 4, limit);
    Choice choice{{source, 1, n_rows, padded, first_kv}, {}, 0};
    int first = 0;
    for (StreamRun run : rows) {
        run.stream = 0;
        run.first = first;
        first += run.n;
        choice.runs.push_back(run);
    }
    choice.cost = cost(group, choice.part);
    return choice;
}

// Rows [done, done + n) of `all` as one stream.
StreamRun AttentionPlanner::part_of(size_t g, const StreamRun &all, int done, int n, const StepBatch &batch) const {
    StreamRun run = all;
    run.first = 0;
    run.begin = all.begin + done;
    run.n = n;
    const int64_t first = batch.positions[static_cast<size_t>(run.begin)];
    const int last_row = run.begin + run.n - 1;
    const int last = batch.groups[g].last_seen(run.sequence, last_row, batch.positions[static_cast<size_t>(last_row)]);
    run.first_block = static_cast<int>(groups_[g].lifetime.first_seen(first)) / kv_block_tokens;
    run.n_blocks = last / kv_block_tokens + 1 - run.first_block;
    return run;
}

// Streams of at most `stream_rows` rows.  `n_exact`: the number of rows that needs no copy; 0: any number.
AttentionPlanner::Choice AttentionPlanner::apart(size_t g, const Rows &rows, int stream_rows, int n_exact,
                                                 const StepBatch &batch) const {
    const Group &group = groups_[g];
    Choice choice{{CachedRows::sequence, 0, stream_rows, 0}, {}, 0};
    int n_blocks = 1;
    for (const StreamRun &all : rows) {
        for (int done = 0; done < all.n; done += stream_rows) {
            StreamRun run = part_of(g, all, done, std::min(stream_rows, all.n - done), batch);
            run.stream = choice.part.n_streams++;
            n_blocks = std::max(n_blocks, run.n_blocks);
            choice.runs.push_back(run);
        }
    }
    const int n_streams = choice.part.n_streams;
    choice.part.n_streams = n_exact > 0 && n_exact % stream_rows == 0 && n_exact / stream_rows >= n_streams
                                ? n_exact / stream_rows
                                : rounded_up(n_streams);
    choice.part.n_kv = padded_kv_tokens(n_blocks * kv_block_tokens, std::numeric_limits<int>::max());
    choice.cost = cost(group, choice.part);
    return choice;
}

// One stream per row, by the table of its sequence.
AttentionPlanner::Choice AttentionPlanner::by_tables(size_t g, const Rows &rows, int n_exact,
                                                     const StepBatch &batch) const {
    const Group &group = groups_[g];
    Choice choice{{CachedRows::paged, 0, 1, 0}, {}, 0};
    int n_blocks = 1;
    double seen = 0; // tokens, summed over rows
    for (const StreamRun &all : rows) {
        for (int done = 0; done < all.n; ++done) {
            StreamRun run = part_of(g, all, done, 1, batch);
            run.stream = choice.part.n_streams++;
            n_blocks = std::max(n_blocks, run.n_blocks);
            seen += run.n_blocks * kv_block_tokens;
            choice.runs.push_back(run);
        }
    }
    choice.part.n_streams = n_exact > 0 ? n_exact : rounded_up(choice.part.n_streams);
    // Padding is not read; it only keeps the number of sizes small.
    choice.part.n_kv = kv_step * rounded_up((n_blocks * kv_block_tokens + kv_step - 1) / kv_step);
    choice.cost = seen * (group.token_bytes + group.pair_products / products_per_byte);
    return choice;
}

// `n_exact`: the step's padded number of rows if `all` has every row, else 0.
AttentionPlanner::Choice AttentionPlanner::best(size_t g, const Rows &rows, int n_exact, const StepBatch &batch) const {
    const Group &group = groups_[g];
    int n_rows = 0;
    std::vector<int32_t> live;
    for (const StreamRun &run : rows) {
        const int32_t *table =
            batch.groups[g].tables.data() + batch.groups[g].table_begin[static_cast<size_t>(run.sequence)];
        live.insert(live.end(), table + run.first_block, table + run.first_block + run.n_blocks);
        n_rows += run.n;
    }
    std::ranges::sort(live);
    live.erase(std::unique(live.begin(), live.end()), live.end());
    const int padded = n_exact > 0 ? n_exact : rounded_up(n_rows);
    const int end = (live.back() + 1) * kv_block_tokens, first_kv = beginning(live.front() * kv_block_tokens, end);
    Choice found = together(group, CachedRows::live, rows, padded, static_cast<int>(live.size()) * kv_block_tokens);
    found.live = std::move(live);
    if (!on_device_) return found;
    auto consider = [&](Choice other) {
        if (other.cost < found.cost) found = std::move(other);
    };
    if (!group.is_explicit) consider(together(group, CachedRows::pool, rows, padded, end - first_kv, first_kv));
    if (group.is_paged && largest_n(rows) <= few_rows) consider(by_tables(g, rows, n_exact, batch));
    const int most = n_exact > 0 ? std::min(n_exact, rounded_up(largest_n(rows))) : rounded_up(largest_n(rows));
    for (int size = 1; size < 2 * most; size *= 2) {
        const int stream_rows = std::min(size, most);
        if (most > 16 && most / stream_rows > 16) continue; // too many copies of the same blocks
        Choice other = apart(g, rows, stream_rows, n_exact, batch);
        const int64_t copied = int64_t{other.part.n_streams} * other.part.n_kv;
        if ((group.is_uncopied || copied <= most_copied(group.pool_tokens)) &&
            other.part.n_rows() <= 2 * rounded_up(max_rows_))
            consider(std::move(other));
    }
    return found;
}

GroupAttention AttentionPlanner::plan_group(size_t g, const StepBatch &batch, int n_tokens) const {
    const Group &group = groups_[g];
    if (group.n_layers == 0) return {};
    const std::vector<int32_t> &lengths = batch.groups[g].n_kv_of(batch.n_kv);
    Rows all, few, many; // few: decoding sequences; many: sequences reading prompts
    for (size_t s = 0; s < batch.n_kv.size(); ++s) {
        const int begin = batch.row_begin[s], n = batch.row_begin[s + 1] - begin;
        const int64_t first = batch.positions[static_cast<size_t>(begin)];
        const int first_block = static_cast<int>(group.lifetime.first_seen(first)) / kv_block_tokens;
        const int n_blocks = (lengths[s] - 1) / kv_block_tokens + 1 - first_block;
        const StreamRun run{0, 0, static_cast<int>(s), begin, n, first_block, n_blocks};
        all.push_back(run);
        (n <= few_rows ? few : many).push_back(run);
    }
    Choice one = best(g, all, n_tokens, batch);
    auto is_in_order = [&] {
        return one.part.n_rows() == n_tokens && std::ranges::all_of(one.runs, [&](const StreamRun &run) {
                   return run.stream * one.part.stream_rows + run.first == run.begin;
               });
    };
    GroupAttention made;
    made.form = {{one.part}, is_in_order()};
    made.runs = {one.runs};
    made.live = {one.live};
    const double moves = group.row_bytes * n_tokens * 2 + 2 * launch_bytes;
    if (!made.form.in_order) one.cost += moves;
    if (on_device_ && !few.empty() && !many.empty()) {
        Choice first = best(g, few, 0, batch), second = best(g, many, 0, batch);
        if (first.cost + second.cost + moves + 2 * launch_bytes < one.cost) {
            made.form.parts = {first.part, second.part};
            made.form.in_order = false;
            made.runs = {std::move(first.runs), std::move(second.runs)};
            made.live = {std::move(first.live), std::move(second.live)};
        }
    }
    return made;
}

std::vector<GroupAttention> AttentionPlanner::plan(const StepBatch &batch, int n_tokens) const {
    std::vector<GroupAttention> groups;
    for (size_t g = 0; g < groups_.size(); ++g) groups.push_back(plan_group(g, batch, n_tokens));
    return groups;
}

std::vector<AttentionForm> AttentionPlanner::paged(int n_tokens) const {
    std::vector<AttentionForm> forms;
    for (const Group &group : groups_)
        forms.push_back(group.n_layers == 0 ? AttentionForm{}
                                            : AttentionForm{{{CachedRows::paged, n_tokens, 1, kv_step}}, true});
    return forms;
}

std::vector<std::vector<AttentionForm>> AttentionPlanner::largest(int n_tokens) const {
    std::vector<AttentionForm> whole, copies;
    for (const Group &group : groups_) {
        if (group.n_layers == 0) {
            whole.emplace_back();
            copies.emplace_back();
            continue;
        }
        const bool is_pool = on_device_ && !group.is_explicit;
        whole.push_back({{{is_pool ? CachedRows::pool : CachedRows::live, 1, n_tokens, group.pool_tokens}}, true});
        copies.push_back({{{CachedRows::sequence, 1, n_tokens, most_copied(group.pool_tokens)}}, true});
    }
    if (!on_device_) return {whole};
    return {whole, copies};
}

} // namespace quire
