#include "graph/graph_executor.h"

#include <ggml-backend.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.h"
#include "graph/lower_cpu.h"
#include "graph/stock_graphs.h"
#include "kernels/matmul/matmul.h"
#include "kernels/thread_team.h"

namespace quire {
namespace {

size_t budget_of(const CacheLayout &layout, const ExecutorOptions &options) {
    const auto n_blocks = static_cast<size_t>(std::max(0, options.n_blocks - 1));
    const auto n_states = static_cast<size_t>(std::max(0, options.n_states - 1));
    size_t block_bytes = n_blocks * layout.block_bytes();
    if (options.cache_bytes > 0) block_bytes = std::min(block_bytes, options.cache_bytes);
    return block_bytes + n_states * layout.state_bytes();
}

// On the CPU memory is taken when it is written, so that each group has ids for as much of the budget as it may get.
CacheSizes sizes_of(const CacheLayout &layout, const ExecutorOptions &options, bool is_cpu) {
    const size_t budget = budget_of(layout, options);
    auto n_of = [&](size_t bytes, int least) {
        return is_cpu ? static_cast<int>(std::min<size_t>(budget / bytes + 1, 1 << 30)) : least;
    };
    CacheSizes sizes;
    for (const CacheGroup &group : layout.groups())
        sizes.n_blocks.push_back(options.n_blocks < 2 ? options.n_blocks : n_of(group.block_bytes, options.n_blocks));
    if (layout.state_bytes() > 0)
        sizes.n_states = options.n_states < 2 ? options.n_states : n_of(layout.state_bytes(), options.n_states);
    return sizes;
}

KvStore make_store(CacheLayout layout, const ExecutorOptions &options, const Backend &backend) {
    CacheSizes sizes = sizes_of(layout, options, backend.is_cpu());
    return {std::move(layout), std::move(sizes), backend.device(), backend.is_cpu() ? nullptr : backend.handle()};
}

// Rows of the smallest table that ids index: those of the operation `ids`.
int64_t rows_indexed_by(const Trace &trace, int ids) {
    int64_t n = trace.encoder ? rows_indexed_by(*trace.encoder, ids) : std::numeric_limits<int32_t>::max();
    for (const Operation &operation : trace.operations)
        if (const Weight *table = operation.kind->table(); table != nullptr && operation.inputs[0] == ids)
            n = std::min(n, table->tensor.shape()[0]);
    return n;
}

bool own_kernels(Kernels kernels, const Backend &backend) {
    if (kernels == Kernels::cpu && !backend.is_cpu()) {
        throw UnsupportedError("executor",
                               cat("kernels \"cpu\" must run on the CPU but the device is ", backend.device().name()));
    }
    return kernels != Kernels::stock && backend.is_cpu();
}

GraphLimits limits_for(const Trace &trace, const ExecutorOptions &options, bool own) {
    const bool is_vectors = trace.kind == OutputKind::vectors;
    const int most_rows = is_vectors || trace.encoder ? 32768 : 4096; // texts that cannot be divided may be long
    if (options.max_rows < 1 || options.max_rows > most_rows)
        throw ShapeError("executor", cat("max_rows must be 1 to ", most_rows, " but is ", options.max_rows));
    if (options.max_sequences < 1 || options.max_sequences > 1024) {
        throw ShapeError("executor", cat("max_sequences must be 1 to 1024 but is ", options.max_sequences));
    }
    int rows = std::max(options.max_rows, options.max_sequences);
    // Logits of a large vocabulary are the largest array of a step, so few rows of them are made at a time.
    int logit_rows = is_vectors ? rows : std::min(rows, std::max(options.max_sequences, 64));
    // Where no layer keeps rows, a step has no cached ones but its own.
    const bool keeps_rows =
        std::ranges::any_of(trace.cache, [](const CacheSpec &spec) { return spec.rows.has_value(); });
    const int kv_tokens = keeps_rows ? (options.n_blocks - 1) * kv_block_tokens : rows;
    return {rows, logit_rows, options.max_sequences, own ? 0 : kv_tokens};
}

} // namespace

struct OwnProgram {
    KernelSet kernels;
    std::unique_ptr<PackedModel> packed; // null without kernels that read it
    CpuMatrices matrices;
    CpuProgram program;
    std::optional<CpuProgram> encoder;
    std::shared_ptr<ThreadTeam> team;

    OwnProgram(const Trace &trace, const KvStore &store, const ExecutorOptions &options, CpuProgramLimits limits)
        : kernels(options.kernel_set.value_or(KernelSet())),
          packed(options.repack != Repack::no ? std::make_unique<PackedModel>(kernels, trace, options.repack,
                                                                              options.n_threads, options.packed_cache)
                                              : nullptr),
          matrices(kernels, packed.get()), program(lower_cpu({trace, store, matrices, limits, kernels})),
          team(options.team ? options.team : std::make_shared<ThreadTeam>(options.n_threads, options.cpus)) {
        if (!trace.encoder) return;
        const CpuProgramLimits of_sources{limits.max_rows, 1, limits.max_sequences};
        encoder.emplace(lower_cpu({*trace.encoder, store, matrices, of_sources, kernels}));
    }
    size_t compute_bytes() const { return program.size_bytes() + (encoder ? encoder->size_bytes() : 0); }
};

GraphExecutor::GraphExecutor(Trace trace, Device device, const ExecutorOptions &options)
    : trace_(std::move(trace)), backend_(device, options.n_threads),
      store_(make_store(CacheLayout(trace_.cache, options.kv_types), options, backend_)),
      budget_bytes_(budget_of(store_.layout(), options)), max_sequences_(options.max_sequences),
      n_ids_(rows_indexed_by(trace_, tokens_operation)), n_positions_(rows_indexed_by(trace_, positions_operation)),
      n_types_(rows_indexed_by(trace_, token_types_operation)),
      limits_(limits_for(trace_, options, own_kernels(options.kernels, backend_))) {
    if (own_kernels(options.kernels, backend_)) {
        if (options.sums_inputs)
            throw UnsupportedError("executor", "inputs of products must be summed by stock kernels");
        ExecutorOptions counted = options;
        counted.n_threads = backend_.n_threads();
        own_ = std::make_unique<OwnProgram>(trace_, store_, counted,
                                            CpuProgramLimits{max_rows(), max_logit_rows(), max_sequences_});
        return;
    }
    if (options.kv_types.are_coded()) {
        throw UnsupportedError("executor", cat("kv_dtype ", name(options.kv_types),
                                               " must be used with Quire's own kernels but they are not in use here"));
    }
    if (options.kernel_set) {
        throw UnsupportedError("executor",
                               "a kernel set must go with Quire's own kernels but they are not in use here");
    }
    if (!options.cpus.empty()) {
        throw UnsupportedError("executor",
                               "a processor mask must go with Quire's own kernels but they are not in use here");
    }
    if (options.sums_inputs && !backend_.is_cpu()) {
        throw UnsupportedError("executor", cat("inputs of products must be summed on the CPU but the device is ",
                                               backend_.device().name()));
    }
    stock_ = std::make_unique<StockGraphs>(trace_, store_, backend_, limits_, options.sums_inputs);
    if (!trace_.encoder) return;
    if (options.sums_inputs) throw UnsupportedError("executor", "a model whose inputs are summed must have no encoder");
    const GraphLimits of_sources{limits_.max_rows, 1, limits_.max_sequences, limits_.max_rows};
    stock_encoder_ = std::make_unique<StockGraphs>(*trace_.encoder, store_, backend_, of_sources, false);
}

GraphExecutor::~GraphExecutor() = default;

std::shared_ptr<ThreadTeam> GraphExecutor::team() const { return own_ ? own_->team : nullptr; }

size_t GraphExecutor::cache_bytes() const {
    return std::min(store_.size_bytes(), budget_bytes_ + cache().block_bytes() + cache().state_bytes());
}

size_t GraphExecutor::compute_bytes() const {
    if (own_) return own_->compute_bytes();
    return stock_->compute_bytes() + (stock_encoder_ ? stock_encoder_->compute_bytes() : 0);
}
size_t GraphExecutor::packed_bytes() const { return packed_model() ? packed_model()->size_bytes() : 0; }
const InputSums *GraphExecutor::input_sums() const { return stock_ ? stock_->sums() : nullptr; }
const PackedModel *GraphExecutor::packed_model() const { return own_ ? own_->packed.get() : nullptr; }
const KernelSet *GraphExecutor::kernel_set() const { return own_ ? &own_->kernels : nullptr; }
size_t GraphExecutor::n_graphs() const { return own_ ? 1 : stock_->n_graphs(); }
std::vector<std::string> GraphExecutor::stock_operations() const {
    if (!own_) return {};
    std::set<std::string> names = own_->program.stock_operations();
    if (own_->encoder) names.insert(own_->encoder->stock_operations().begin(), own_->encoder->stock_operations().end());
    return {names.begin(), names.end()};
}
size_t GraphExecutor::n_nodes() const { return own_ ? own_->program.n_nodes() : 0; }

// The batch comes from our own scheduler, so a violation is a bug; yet it would read or write outside of memory.
void GraphExecutor::check(const StepBatch &batch, Pass pass) const {
    size_t n_rows = batch.tokens.size(), n_sequences = batch.n_kv.size();
    auto expect = [](bool holds, const char *what) {
        if (!holds) throw InternalError("executor", what);
    };
    expect(n_rows > 0 && n_rows <= static_cast<size_t>(max_rows()), "a step must have 1 to max_rows tokens");
    expect(batch.positions.size() == n_rows, "positions must be as many as tokens");
    expect(batch.token_types.size() == n_rows, "token types must be as many as tokens");
    expect(batch.axes.empty() || batch.axes.size() == 3 * n_rows, "axes must be three for each token");
    expect(batch.logit_rows.size() <= static_cast<size_t>(max_logit_rows()),
           "logit rows must be at most max_logit_rows");
    expect(n_sequences > 0 && batch.row_begin.size() == n_sequences + 1, "row_begin and n_kv must agree");
    expect(batch.row_begin.front() == 0 && static_cast<size_t>(batch.row_begin.back()) == n_rows,
           "row_begin must span all rows");
    auto inside = [](int32_t value, int64_t limit) { return value >= 0 && value < limit; };
    for (int32_t token : batch.tokens) expect(inside(token, n_ids_), "token ids must be rows of the embedding");
    for (int32_t position : batch.positions) expect(inside(position, n_positions_), "positions must be in their table");
    for (int32_t type : batch.token_types) expect(inside(type, n_types_), "token types must be in their table");
    for (int32_t row : batch.logit_rows) expect(inside(row, static_cast<int64_t>(n_rows)), "logit rows must be rows");
    for (size_t s = 0; s < n_sequences; ++s) {
        int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s], n_kv = batch.n_kv[s];
        expect(rows > 0 && n_kv >= rows, "a sequence must have rows, and at least as many cached tokens");
        for (int32_t i = 0; i < rows; ++i) {
            expect(batch.positions[static_cast<size_t>(batch.row_begin[s] + i)] == n_kv - rows + i,
                   "positions must be the last of the sequence");
        }
    }
    const size_t n_states_wanted = cache().state_bytes() > 0 ? n_sequences : 0;
    expect(batch.states.size() == n_states_wanted, "every sequence must have its state");
    for (int32_t slot : batch.states) expect(slot > 0 && slot < n_states(), "states must lie in the store");
    check_tables(batch, pass);
}

void GraphExecutor::check_tables(const StepBatch &batch, Pass pass) const {
    auto expect = [](bool holds, const char *what) {
        if (!holds) throw InternalError("executor", what);
    };
    expect(batch.groups.size() == cache().groups().size(), "every group of the cache must have its tables");
    for (size_t g = 0; g < batch.groups.size(); ++g) {
        const GroupBatch &group = batch.groups[g];
        const int n = n_blocks(static_cast<int>(g));
        const bool of_source = cache().groups()[g].lifetime.of_source, encodes = pass == Pass::encode;
        if (encodes && !of_source) continue;
        expect(group.slots.size() == (of_source && !encodes ? 0 : batch.tokens.size()) &&
                   group.table_begin.size() == batch.n_kv.size(),
               "slots and table_begin must be as many as rows and sequences");
        expect(group.n_source.size() == (of_source && !encodes ? batch.n_kv.size() : 0),
               "sequences must have a source where they read one");
        for (int32_t length : group.n_source) expect(length > 0, "a source must have tokens");
        for (int32_t slot : group.slots) expect(slot >= 0 && slot / kv_block_tokens < n, "slots must lie in the store");
        for (int32_t block : group.tables) expect(block >= 0 && block < n, "blocks must lie in the store");
        for (size_t s = 0; s < batch.n_kv.size(); ++s) {
            const int64_t n_table = (group.n_kv_of(batch.n_kv)[s] + kv_block_tokens - 1) / kv_block_tokens;
            expect(group.table_begin[s] >= 0 &&
                       group.table_begin[s] + n_table <= static_cast<int64_t>(group.tables.size()),
                   "a block table must hold all cached tokens");
        }
    }
}

const float *GraphExecutor::hidden() { return own_ ? own_->program.hidden() : stock_->hidden(); }

std::vector<int> GraphExecutor::tapped_layers() const {
    std::vector<int> layers;
    for (const Tap &tap : trace_.taps) layers.push_back(tap.layer);
    return layers;
}

Executor::TapRows GraphExecutor::tap(size_t i) {
    const Operation &operation = trace_.operations[static_cast<size_t>(trace_.taps.at(i).operation)];
    const auto n = static_cast<size_t>(operation.shape.rest[0]);
    if (own_) return {own_->program.tap(i), n};
    return {stock_->tap(i), n};
}

static_assert(logit_strip == static_cast<size_t>(strip_columns));
float *GraphExecutor::maxima() { return own_ ? own_->program.maxima() : nullptr; }

float *GraphExecutor::run(const StepBatch &batch) {
    check(batch, Pass::decode);
    return own_ ? own_->program.run(batch, *own_->team) : stock_->run(batch);
}

void GraphExecutor::encode(const StepBatch &batch) {
    if (!trace_.encoder) throw InternalError("executor", "a model that reads a source must have an encoder");
    check(batch, Pass::encode);
    if (own_)
        own_->encoder->run(batch, *own_->team);
    else
        stock_encoder_->run(batch);
}

} // namespace quire
