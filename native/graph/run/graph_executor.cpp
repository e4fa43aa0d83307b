#include "graph/run/graph_executor.h"

#include <ggml-backend.h>

#include <algorithm>
#include <limits>
#include <new>
#include <set>

#include "core/error.h"
#include "core/system.h"
#include "graph/operations/fused/embed.h"
#include "graph/operations/fused/linear.h"
#include "graph/run/merged_products.h"
#include "graph/run/pass.h"
#include "graph/stock/device_weights.h"
#include "kernels/matmul/matmul.h"
#include "kernels/thread_team.h"

namespace quire {
namespace {

// The layers whose rows are there, and the states.
KeptParts kept_at(Place place, size_t n_layers, const PlacesOfCache &cached) {
    KeptParts kept{std::vector<bool>(n_layers), std::set<StatePlace>()};
    for (const auto &[layer, of_rows] : cached.rows) kept.rows[static_cast<size_t>(layer)] = of_rows == place;
    for (const auto &[state, of_state] : cached.states)
        if (of_state == place) kept.states->insert(state);
    return kept;
}

// Calls `use` for what is computed in the pieces at places that `is_wanted`.
template <class Wanted, class Use>
void for_operations(const std::vector<Pass *> &passes, const Wanted &is_wanted, const Use &use) {
    for (const Pass *pass : passes)
        for (const Piece &piece : pass->pieces())
            if (is_wanted(piece.place))
                for (const Operation &operation : piece.trace.operations) use(*operation.kind);
}

std::set<const Weight *> matrices_of_passes(const std::vector<Pass *> &passes, bool on_devices) {
    std::set<const Weight *> found;
    for_operations(
        passes, [&](Place place) { return is_device(place) == on_devices; },
        [&](const OperationKind &kind) {
            for (const WeightRef &weight : kind.matrices()) found.insert(weight.get());
        });
    return found;
}

void check_runs_on(const Trace &trace, Device device) {
    for (const Operation &operation : trace.operations)
        if (!operation.kind->runs_on(device))
            throw UnsupportedError(operation.kind->name(),
                                   cat(device.name(), " has no operator for these sizes: use the CPU"));
}

// All weights of what is computed there.
std::vector<WeightRef> weights_at(const std::vector<Pass *> &passes, Place place) {
    std::vector<WeightRef> found;
    for_operations(
        passes, [&](Place other) { return other == place; },
        [&](const OperationKind &kind) {
            for (const std::vector<WeightRef> &some : {kind.weights(), kind.matrices()})
                found.insert(found.end(), some.begin(), some.end());
        });
    return found;
}

// Rows of the smallest table that ids index: those of the operation `ids`.
int64_t rows_indexed_by(const Trace &trace, int ids) {
    int64_t n = std::numeric_limits<int32_t>::max();
    for (const Operation &operation : trace.operations)
        if (const Weight *table = operation.kind->table(); table != nullptr && operation.inputs[0] == ids)
            n = std::min(n, table->tensor.shape()[0]);
    return n;
}

} // namespace

struct GraphExecutor::DevicePart {
    Backend backend;
    DeviceWeights weights;
    const KvStore *store = nullptr; // null where the device has no part
    std::unique_ptr<StockDevice> stock;

    DevicePart(Device device, const ExecutorOptions &options)
        : backend(device, options.n_threads, options.memory), weights(backend) {}
};

GraphExecutor::Tables::Tables(const Trace &trace)
    : n_ids(rows_indexed_by(trace, tokens_operation)), n_positions(rows_indexed_by(trace, positions_operation)),
      n_types(rows_indexed_by(trace, token_types_operation)) {}

GraphExecutor::GraphExecutor(Trace trace, Device device, const ExecutorOptions &options)
    : trace_(std::move(trace)), max_sequences_(options.max_sequences), tables_(trace_) {
    if (trace_.encoder) source_tables_.emplace(*trace_.encoder);
    devices_.push_back(std::make_unique<DevicePart>(device, options));
    for (const Device &other : options.more_devices) devices_.push_back(std::make_unique<DevicePart>(other, options));
    check_options(trace_, options, first().backend);
    make_stores(options, cut_traces(options));
    limits_ = limits_for(trace_, options, !has_graphs());
    std::vector<const Backend *> backends;
    for (const auto &part : devices_) backends.push_back(&part->backend);
    for (Pass *pass : passes()) pass->add_boundaries(backends, max_rows(), max_logit_rows());
    // The devices' copies first: what they were made of may be given back, and so may what is packed.
    if (has_graphs()) make_graphs(options);
    if (has_part(Place::cpu)) make_programs(options);
}

GraphExecutor::~GraphExecutor() = default;

GraphExecutor::Measured GraphExecutor::measure(Trace trace, Device device, ExecutorOptions options) {
    options.memory = Memory::measured;
    options.repack = Repack::no;
    options.packed_cache.reset();
    const GraphExecutor made(std::move(trace), device, options);
    return {made.device_bytes(), made.own_ ? made.own_->memory_bytes : 0};
}

PlacesOfCache GraphExecutor::cut_traces(const ExecutorOptions &options) {
    PlacesOfCache cached;
    std::vector<Device> devices;
    for (const auto &part : devices_) devices.push_back(part->backend.device());
    if (trace_.stages) {
        if (trace_.encoder || trace_.attends_both_ways())
            throw UnsupportedError("parallel", "pipelines are unsupported for models with encoders");
        decode_ = std::make_unique<Pass>(cut_stages(trace_, *trace_.stages, cached), trace_.stages->group);
        return cached;
    }
    auto cut_or_whole = [&](const Trace &whole) {
        if (!options.places.empty()) return std::make_unique<Pass>(cut(whole, options.places, devices, cached));
        if (own_kernels(options.kernels, first().backend)) return std::make_unique<Pass>(uncut(whole, Place::cpu));
        check_runs_on(whole, devices.front());
        return std::make_unique<Pass>(uncut(whole, Place::device));
    };
    if (trace_.encoder) encode_ = cut_or_whole(*trace_.encoder); // which says where the rows are that others read
    decode_ = cut_or_whole(trace_);
    return cached;
}

std::vector<Pass *> GraphExecutor::passes() const {
    if (encode_) return {decode_.get(), encode_.get()};
    return {decode_.get()};
}

bool GraphExecutor::has_part(Place place) const {
    return std::ranges::any_of(passes(), [place](const Pass *pass) { return pass->is_at(place); });
}

bool GraphExecutor::has_graphs() const {
    for (size_t d = 0; d < devices_.size(); ++d)
        if (has_part(device_place(d))) return true;
    return false;
}

// Attention of a device reads the stretch of the pool that holds them, or copies.
bool GraphExecutor::prefers_near_blocks() const { return has_graphs() && !first().backend.is_cpu(); }

void GraphExecutor::make_stores(const ExecutorOptions &options, const PlacesOfCache &cached) {
    const CacheLayout layout(trace_.cache, options.kv_types);
    const bool is_mixed = !options.places.empty() || trace_.stages,
               on_device = !first().backend.is_cpu() && has_graphs();
    const CacheSizes sizes = sizes_of(layout, options, !on_device);
    budget_bytes_ = budget_of(layout, options);
    auto kept = [&](Place place) { return is_mixed ? kept_at(place, layout.layers().size(), cached) : KeptParts{}; };
    for (size_t d = 0; on_device && d < devices_.size(); ++d) {
        DevicePart &part = *devices_[d];
        const Place place = device_place(d);
        if (!has_part(place)) continue;
        stores_.push_back(std::make_unique<KvStore>(layout, sizes, part.backend.device(), part.backend.handle(),
                                                    kept(place), options.memory));
        part.store = stores_.back().get();
    }
    if (on_device && !has_part(Place::cpu)) return;
    stores_.push_back(std::make_unique<KvStore>(layout, sizes, find_device("CPU"), nullptr, kept(Place::cpu)));
    if (!on_device) first().store = stores_.back().get();
}

void GraphExecutor::make_graphs(const ExecutorOptions &options) {
    if (options.kv_types.are_coded()) {
        throw UnsupportedError("executor", cat("kv_dtype ", name(options.kv_types),
                                               " needs Quire's own kernels, which are not in use here"));
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
        DevicePart &part = *devices_[d];
        const Place place = device_place(d);
        if (!has_part(place)) continue;
        std::vector<const Trace *> traces;
        for (const Pass *pass : passes())
            for (const Piece &piece : pass->pieces())
                if (piece.place == place) traces.push_back(&piece.trace);
        part.weights.copy(weights_at(passes(), place), products_together(traces));
        part.weights.arrange(matrices_of_products(traces));
        part.stock = std::make_unique<StockDevice>(part.backend, *part.store, options.sums_inputs, &part.weights);
        part.stock->adapters.serve(weights_at(passes(), place));
        decode_->add_graphs(place, *part.stock, limits_);
        if (encode_)
            encode_->add_graphs(place, *part.stock, {limits_.max_rows, 1, limits_.max_sequences, limits_.max_rows});
    }
    const bool gives_back = options.repack == Repack::release || options.repack == Repack::lock;
    if (first().backend.is_cpu() || !gives_back) return;
    const std::set<const Weight *> others = matrices_of_passes(passes(), false);
    for (const Weight *weight : matrices_of_passes(passes(), true))
        if (!others.contains(weight) && weight->tensor.device().kind() == DeviceKind::cpu)
            give_back(weight->tensor.data(), weight->tensor.size_bytes());
}

void GraphExecutor::make_programs(const ExecutorOptions &options) {
    const KernelSet kernels = options.kernel_set.value_or(KernelSet());
    std::unique_ptr<PackedModel> packed;
    if (options.repack != Repack::no) {
        Trace read = operations_at(Place::cpu, decode_->pieces());
        if (encode_) read.encoder = std::make_shared<const Trace>(operations_at(Place::cpu, encode_->pieces()));
        packed = std::make_unique<PackedModel>(kernels, read, options.repack, n_threads(), options.packed_cache,
                                               options.packed_of);
    }
    own_ = std::make_unique<OwnKernels>(kernels, std::move(packed),
                                        options.team ? options.team
                                                     : std::make_shared<ThreadTeam>(n_threads(), options.cpus));
    const KvStore &store = *stores_.back();
    decode_->add_programs(*own_, store, {max_rows(), max_logit_rows(), max_sequences_});
    if (encode_) encode_->add_programs(*own_, store, {max_rows(), 1, max_sequences_});
    for (const Pass *pass : passes()) own_->memory_bytes = std::max(own_->memory_bytes, pass->program_bytes());
    if (options.memory == Memory::measured) return;
    try {
        own_->memory = AlignedMemory(own_->memory_bytes);
    } catch (const std::bad_alloc &) {
        throw CapacityError("graph", cat("out of memory: ", own_->memory_bytes, " bytes of values"));
    }
    for (Pass *pass : passes()) pass->place(own_->memory.data());
}

std::shared_ptr<LowRankAdapter> GraphExecutor::adapter(std::string identity,
                                                       const std::vector<AdapterPair> &pairs) const {
    const auto products_at = [&](bool on_devices) {
        std::vector<AdaptedWeights::Use> found;
        for (const Pass *pass : passes())
            for (const Piece &piece : pass->pieces())
                if (is_device(piece.place) == on_devices)
                    for (const Operation &operation : piece.trace.operations) {
                        if (const auto *linear = operation.as<Linear>()) found.push_back({linear->weight(), false});
                        const auto *embed = operation.as<Embed>();
                        if (embed != nullptr && operation.inputs[0] == tokens_operation)
                            found.push_back({embed->weight(), true});
                    }
        return found;
    };
    AdaptedWeights products{products_at(false), products_at(true)};
    const auto has = [](const std::vector<DType> &dtypes, DType dtype) {
        return std::ranges::find(dtypes, dtype) != dtypes.end();
    };
    for (size_t d = 0; has_graphs() && d < devices_.size(); ++d) {
        const Device device = devices_[d]->backend.device();
        const std::vector<DType> dtypes = device.dtypes("mul_mat_id");
        if (!has(dtypes, DType::f32))
            throw UnsupportedError("adapter", cat(device.name(), " has no products with a matrix per row"));
        products.devices_have_bf16 = products.devices_have_bf16 && has(dtypes, DType::bf16);
    }
    return make_adapter(std::move(identity), own_ ? &own_->kernels : nullptr, products, pairs);
}

size_t GraphExecutor::adapter_bytes() const {
    size_t size_bytes = 0;
    for (const auto &part : devices_)
        if (part->stock) size_bytes += part->stock->adapters.size_bytes();
    return size_bytes;
}

void GraphExecutor::keep_adapters_within(size_t size_bytes) const {
    for (const auto &part : devices_)
        if (part->stock) part->stock->adapters.keep_within(size_bytes);
}

std::shared_ptr<ThreadTeam> GraphExecutor::team() const { return own_ ? own_->team : nullptr; }

size_t GraphExecutor::cache_bytes() const {
    size_t all = 0;
    for (const auto &each : stores_) all += each->size_bytes();
    return std::min(all, budget_bytes_ + cache().block_bytes() + cache().state_bytes());
}

size_t GraphExecutor::compute_bytes() const {
    size_t bytes = own_ ? own_->memory_bytes : 0;
    for (const Pass *pass : passes()) bytes += pass->host_boundary_bytes();
    for (const DeviceBytes &there : device_bytes()) bytes += there.compute;
    return bytes;
}

std::vector<GraphExecutor::DeviceBytes> GraphExecutor::device_bytes() const {
    std::vector<DeviceBytes> found;
    for (size_t d = 0; has_graphs() && d < devices_.size(); ++d) {
        const DevicePart &part = *devices_[d];
        DeviceBytes &there = found.emplace_back();
        there.free = part.backend.device().memory_free_bytes();
        there.total = part.backend.device().memory_total_bytes();
        if (!part.stock) continue;
        there.weights = part.weights.size_bytes() + part.stock->adapters.size_bytes();
        there.cache = part.store->size_bytes();
        there.compute = part.stock->cache.compute_bytes() + part.stock->cache.inputs().size_bytes();
        for (const Pass *pass : passes()) there.compute += pass->boundary_bytes(d);
    }
    return found;
}

size_t GraphExecutor::n_pieces() const { return decode_->pieces().size(); }
size_t GraphExecutor::packed_bytes() const { return packed_model() ? packed_model()->size_bytes() : 0; }
const InputSums *GraphExecutor::input_sums() const { return first().stock ? first().stock->sums.get() : nullptr; }
int GraphExecutor::n_threads() const { return first().backend.n_threads(); }
const PackedModel *GraphExecutor::packed_model() const { return own_ ? own_->packed.get() : nullptr; }
const KernelSet *GraphExecutor::kernel_set() const { return own_ ? &own_->kernels : nullptr; }
size_t GraphExecutor::n_graphs() const {
    size_t n = 0;
    for (const auto &part : devices_) n += part->stock ? part->stock->cache.n_graphs() : 0;
    return std::max<size_t>(n, 1);
}

std::vector<std::string> GraphExecutor::stock_operations() const {
    std::set<std::string> names;
    for (const Pass *pass : passes()) names.merge(pass->stock_operations());
    return {names.begin(), names.end()};
}

size_t GraphExecutor::n_nodes() const { return decode_->n_nodes(); }

void GraphExecutor::copy_block(int group, int from, int to) {
    for (const auto &store : stores_) store->copy_block(group, from, to);
}
void GraphExecutor::copy_state(int from, int to) {
    for (const auto &store : stores_) store->copy_state(from, to);
}
void GraphExecutor::discard_block(int group, int block) {
    for (const auto &store : stores_) store->discard_block(group, block);
}
void GraphExecutor::discard_state(int slot) {
    for (const auto &store : stores_) store->discard_state(slot);
}
void GraphExecutor::read_block(int group, int block, uint8_t *to) {
    for (const auto &store : stores_) store->read_block(group, block, to);
}
void GraphExecutor::write_block(int group, int block, const uint8_t *from) {
    for (const auto &store : stores_) store->write_block(group, block, from);
}
void GraphExecutor::read_state(int slot, uint8_t *to) {
    for (const auto &store : stores_) store->read_state(slot, to);
}
void GraphExecutor::write_state(int slot, const uint8_t *from) {
    for (const auto &store : stores_) store->write_state(slot, from);
}

// The batch comes from our own scheduler, so a violation is a bug; yet it would read or write outside of memory.
void GraphExecutor::check(const StepBatch &batch, Kind kind) const {
    size_t n_rows = batch.tokens.size(), n_sequences = batch.n_kv.size();
    auto expect = [](bool holds, const char *what) {
        if (!holds) throw InternalError("executor", what);
    };
    expect(n_rows > 0 && n_rows <= static_cast<size_t>(max_rows()), "a step has no tokens or more than max_rows");
    expect(batch.positions.size() == n_rows, "positions and tokens differ in number");
    expect(batch.token_types.size() == n_rows, "token types and tokens differ in number");
    const bool encodes = kind == Kind::encode;
    const Tables &tables = encodes ? *source_tables_ : tables_;
    expect(batch.features.size() == n_rows * static_cast<size_t>(encodes ? n_source_features() : n_features_read()),
           "features do not match the tokens");
    expect(batch.axes.empty() || batch.axes.size() == 3 * n_rows, "axes are not three for each token");
    expect(batch.logit_rows.size() <= static_cast<size_t>(max_logit_rows()), "more logit rows than max_logit_rows");
    expect(batch.likeliest.empty() || batch.likeliest.size() == batch.logit_rows.size(),
           "likeliest and logit rows differ in number");
    expect(n_sequences > 0 && batch.row_begin.size() == n_sequences + 1,
           "row_begin and n_kv disagree, or there is no sequence");
    expect(batch.row_begin.front() == 0 && static_cast<size_t>(batch.row_begin.back()) == n_rows,
           "row_begin does not span all rows");
    auto inside = [](int32_t value, int64_t limit) { return value >= 0 && value < limit; };
    for (int32_t token : batch.tokens) expect(inside(token, tables.n_ids), "token id beyond the embedding");
    for (int32_t position : batch.positions) expect(inside(position, tables.n_positions), "position beyond its table");
    for (int32_t type : batch.token_types) expect(inside(type, tables.n_types), "token type beyond its table");
    for (int32_t row : batch.logit_rows)
        expect(inside(row, static_cast<int64_t>(n_rows)), "logit row beyond the step's rows");
    for (size_t s = 0; s < n_sequences; ++s) {
        int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s], n_kv = batch.n_kv[s];
        expect(rows > 0 && n_kv >= rows, "a sequence has no rows, or more rows than cached tokens");
        for (int32_t i = 0; i < rows; ++i) {
            expect(batch.positions[static_cast<size_t>(batch.row_begin[s] + i)] == n_kv - rows + i,
                   "positions are not the last of the sequence");
        }
    }
    expect(batch.adapters.empty() || batch.adapters.size() == n_sequences, "adapters and sequences differ in number");
    const size_t n_states_wanted = cache().state_bytes() > 0 ? n_sequences : 0;
    expect(batch.states.size() == n_states_wanted, "states and sequences differ in number");
    for (int32_t slot : batch.states) expect(slot > 0 && slot < n_states(), "state beyond the store");
    check_tables(batch, kind);
}

// Rows see themselves, and never more than is cached; the attention kernels rely on an ascending order.
void GraphExecutor::check_visible(const StepBatch &batch, const GroupBatch &group, bool is_supported) {
    if (group.last_visible.empty()) return;
    if (!is_supported || group.last_visible.size() != batch.tokens.size())
        throw InternalError("executor", "last_visible does not match the rows, or the layers see no later rows");
    for (size_t s = 0; s < batch.n_kv.size(); ++s) {
        int32_t before = 0;
        for (auto row = static_cast<size_t>(batch.row_begin[s]); row < static_cast<size_t>(batch.row_begin[s + 1]);
             ++row) {
            const int32_t last = group.last_visible[row];
            if (last < batch.positions[row] || last >= batch.n_kv[s] || last < before)
                throw InternalError("executor", cat("a row at position ", batch.positions[row], " sees up to ", last,
                                                    " of ", batch.n_kv[s], " cached tokens"));
            before = last;
        }
    }
}

void GraphExecutor::check_tables(const StepBatch &batch, Kind kind) const {
    auto expect = [](bool holds, const char *what) {
        if (!holds) throw InternalError("executor", what);
    };
    expect(batch.groups.size() == cache().groups().size(), "tables and groups of the cache differ in number");
    for (size_t g = 0; g < batch.groups.size(); ++g) {
        const GroupBatch &group = batch.groups[g];
        const int n = n_blocks(static_cast<int>(g));
        const bool of_source = cache().groups()[g].lifetime.of_source, encodes = kind == Kind::encode;
        if (encodes && !of_source) continue;
        expect(group.slots.size() == (of_source && !encodes ? 0 : batch.tokens.size()) &&
                   group.table_begin.size() == batch.n_kv.size(),
               "slots or table_begin do not match rows and sequences");
        expect(group.n_source.size() == (of_source && !encodes ? batch.n_kv.size() : 0),
               "n_source does not match the sequences");
        for (int32_t length : group.n_source) expect(length > 0, "empty source text");
        check_visible(batch, group, cache().groups()[g].lifetime.bidirectional_media);
        for (int32_t slot : group.slots) expect(slot >= 0 && slot / kv_block_tokens < n, "slot beyond the store");
        for (int32_t block : group.tables) expect(block >= 0 && block < n, "block beyond the store");
        for (size_t s = 0; s < batch.n_kv.size(); ++s) {
            const int64_t n_table = (group.n_kv_of(batch.n_kv)[s] + kv_block_tokens - 1) / kv_block_tokens;
            expect(group.table_begin[s] >= 0 &&
                       group.table_begin[s] + n_table <= static_cast<int64_t>(group.tables.size()),
                   "a block table is shorter than its cached tokens");
        }
    }
}

const float *GraphExecutor::hidden() { return decode_->hidden(); }

std::vector<int> GraphExecutor::tapped_layers() const {
    std::vector<int> layers;
    for (const Tap &tap : trace_.taps)
        if (tap.layer != features_tap) layers.push_back(tap.layer);
    return layers;
}

bool GraphExecutor::shows_features() const { return !trace_.taps.empty() && trace_.taps.back().layer == features_tap; }
int GraphExecutor::n_features() const {
    if (!shows_features()) return 0;
    return static_cast<int>(trace_.operations[static_cast<size_t>(trace_.taps.back().operation)].shape.rest[0]);
}
const float *GraphExecutor::features() { return shows_features() ? decode_->tap(trace_.taps.size() - 1) : nullptr; }

Executor::TapRows GraphExecutor::tap(size_t i) {
    const Operation &operation = trace_.operations[static_cast<size_t>(trace_.taps.at(i).operation)];
    const auto n = static_cast<size_t>(operation.shape.rest[0]);
    return {decode_->tap(i), n};
}

static_assert(logit_strip == static_cast<size_t>(strip_columns));
float *GraphExecutor::maxima() { return decode_->maxima(); }

float *GraphExecutor::run(const StepBatch &batch) {
    check(batch, Kind::decode);
    return decode_->run(batch);
}

void GraphExecutor::encode(const StepBatch &batch) {
    if (!encode_) throw InternalError("executor", "a model that reads a source has no encoder");
    check(batch, Kind::encode);
    encode_->run(batch);
}

} // namespace quire
