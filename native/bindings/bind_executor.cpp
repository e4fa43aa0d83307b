#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/named.h"
#include "core/error.h"
#include "graph/cpu/memory_plan.h"
#include "graph/cpu/weight_types.h"
#include "graph/run/graph_executor.h"

namespace quire::bindings {
namespace py = pybind11;

PlacesOfWeights places_named(const std::map<std::string, std::string> &given) {
    static constexpr Named<Place> names[] = {
        {"cpu", Place::cpu},          {"device", Place::device},    {"device1", device_place(1)},
        {"device2", device_place(2)}, {"device3", device_place(3)}, {"device4", device_place(4)},
        {"device5", device_place(5)}, {"device6", device_place(6)}, {"device7", device_place(7)}};
    PlacesOfWeights places;
    for (const auto &[name, place] : given) places[name] = parse("executor", "a place", place, names);
    return places;
}

namespace {

Kernels kernels_named(const std::string &text) {
    static constexpr Named<Kernels> names[] = {
        {"auto", Kernels::automatic}, {"stock", Kernels::stock}, {"cpu", Kernels::cpu}};
    return parse("executor", "kernels", text, names);
}

Repack repack(const std::string &text) {
    static constexpr Named<Repack> names[] = {
        {"no", Repack::no}, {"keep", Repack::keep}, {"release", Repack::release}, {"lock", Repack::lock}};
    return parse("executor", "repack", text, names);
}

using Tables = std::vector<std::vector<int32_t>>;

void add_tables(GroupBatch &group, const Tables &tables) {
    for (const std::vector<int32_t> &table : tables) {
        group.table_begin.push_back(static_cast<int32_t>(group.tables.size()));
        group.tables.insert(group.tables.end(), table.begin(), table.end());
    }
}

void encode(GraphExecutor &self, std::vector<int32_t> tokens, std::vector<int32_t> slots,
            std::vector<int32_t> row_begin, const Tables &tables) {
    const auto source = self.cache().source_group();
    if (!source) throw UnsupportedError("executor", "the model does not encode source texts");
    StepBatch batch;
    batch.tokens = std::move(tokens);
    batch.token_types.resize(batch.tokens.size());
    batch.row_begin = std::move(row_begin);
    for (size_t s = 0; s + 1 < batch.row_begin.size(); ++s) {
        batch.n_kv.push_back(batch.row_begin[s + 1] - batch.row_begin[s]);
        for (int32_t i = 0; i < batch.n_kv.back(); ++i) batch.positions.push_back(i);
    }
    batch.groups.resize(self.cache().groups().size());
    GroupBatch &group = batch.groups[static_cast<size_t>(*source)];
    group.slots = std::move(slots);
    add_tables(group, tables);
    py::gil_scoped_release release;
    self.encode(batch);
}

py::array_t<float> run_step(GraphExecutor &self, StepBatch batch, const Tables &tables, const Tables &source_tables,
                            std::vector<int32_t> n_source) {
    const int source = self.cache().source_group().value_or(-1);
    for (size_t g = 0; g < batch.groups.size(); ++g) {
        GroupBatch &group = batch.groups[g];
        add_tables(group, static_cast<int>(g) == source ? source_tables : tables);
        if (static_cast<int>(g) != source) continue;
        group.slots.clear();
        group.n_source = std::move(n_source);
    }
    const float *logits = nullptr;
    {
        py::gil_scoped_release release;
        logits = self.run(batch);
    }
    py::array_t<float> out(
        {static_cast<py::ssize_t>(batch.logit_rows.size()), static_cast<py::ssize_t>(self.n_output())});
    float *to = out.mutable_data();
    const py::ssize_t n = out.size();
    {
        py::gil_scoped_release release; // rows of a large image take long
        std::copy(logits, logits + n, to);
    }
    return out;
}

std::map<std::string, size_t> named_bytes(const GraphExecutor::DeviceBytes &there) {
    return {{"weights", there.weights},
            {"cache", there.cache},
            {"compute", there.compute},
            {"free", there.free},
            {"total", there.total}};
}

py::tuple measure(Trace trace, const Device &device, int n_blocks, const std::string &kv, const std::string &kernels,
                  int max_rows, int max_sequences, int n_states, std::optional<KernelSet> kernel_set,
                  size_t cache_bytes, const std::map<std::string, std::string> &places,
                  std::vector<Device> more_devices) {
    ExecutorOptions options{n_blocks, n_states,      1,         cache_types_from_name(kv), kernels_named(kernels),
                            max_rows, max_sequences, Repack::no};
    options.kernel_set = kernel_set;
    options.cache_bytes = cache_bytes;
    options.places = places_named(places);
    options.more_devices = std::move(more_devices);
    const GraphExecutor::Measured found = [&] {
        py::gil_scoped_release release;
        return GraphExecutor::measure(std::move(trace), device, options);
    }();
    std::vector<std::map<std::string, size_t>> devices;
    for (const auto &there : found.devices) devices.push_back(named_bytes(there));
    return py::make_tuple(devices, found.cpu_compute);
}

py::dict input_sums(const GraphExecutor &self) {
    py::dict made;
    if (self.input_sums() == nullptr) return made;
    for (const auto &[name, sums] : self.input_sums()->sums()) {
        py::array_t<double> squares({sums.n_matrix, sums.n_columns});
        std::copy(sums.squares.begin(), sums.squares.end(), squares.mutable_data());
        made[py::str(name)] =
            py::make_tuple(squares, py::array_t<int64_t>(py::ssize_t{sums.n_matrix}, sums.n_rows.data()));
    }
    return made;
}

} // namespace

void bind_executor(py::module_ &m) {
    py::class_<PackedCacheOptions>(m, "PackedCache")
        .def(py::init([](std::string directory, std::string source, const std::string &load, bool source_is_mapped) {
                 static constexpr Named<LoadMode> modes[] = {
                     {"mmap", LoadMode::mmap}, {"copy", LoadMode::copy}, {"lock", LoadMode::lock}};
                 return PackedCacheOptions{std::move(directory), std::move(source),
                                           parse("executor", "load", load, modes), source_is_mapped};
             }),
             py::arg("directory"), py::kw_only(), py::arg("source") = "", py::arg("load") = "mmap",
             py::arg("source_is_mapped") = false);
    py::class_<Executor, std::shared_ptr<Executor>>(m, "ExecutorBase");
    py::class_<AdapterPair>(m, "AdapterPair")
        .def(py::init([](std::string matrix, std::optional<Tensor> a, Tensor b, float factor, bool is_table,
                         std::optional<Tensor> bias, std::optional<Tensor> lengths) {
                 return AdapterPair{std::move(matrix), is_table,          std::move(a), std::move(b), factor,
                                    std::move(bias),   std::move(lengths)};
             }),
             py::arg("matrix"), py::arg("a"), py::arg("b"), py::arg("factor"), py::kw_only(),
             py::arg("is_table") = false, py::arg("bias") = py::none(), py::arg("lengths") = py::none());
    py::class_<LowRankAdapter, std::shared_ptr<LowRankAdapter>>(m, "LowRankAdapter")
        .def_property_readonly("identity", [](const LowRankAdapter &self) { return py::bytes(self.identity); })
        .def_property_readonly("size_bytes", [](const LowRankAdapter &self) { return self.size_bytes; });
    py::class_<GraphExecutor, Executor, std::shared_ptr<GraphExecutor>>(m, "Executor")
        .def(py::init([](Trace trace, const Device &device, int n_blocks, int threads, const std::string &kv,
                         const std::string &kernels, int max_rows, int max_sequences, const std::string &repack_mode,
                         std::vector<int> cpus, std::optional<PackedCacheOptions> packed_cache, int n_states,
                         std::optional<KernelSet> kernel_set, size_t cache_bytes, bool sums_inputs,
                         const std::shared_ptr<GraphExecutor> &team_of,
                         const std::map<std::string, std::string> &places, std::vector<Device> more_devices) {
                 const ExecutorOptions options{n_blocks,
                                               n_states,
                                               threads,
                                               cache_types_from_name(kv),
                                               kernels_named(kernels),
                                               max_rows,
                                               max_sequences,
                                               repack(repack_mode),
                                               std::move(cpus),
                                               std::move(packed_cache),
                                               kernel_set,
                                               cache_bytes,
                                               sums_inputs,
                                               team_of ? team_of->team() : nullptr,
                                               team_of ? team_of->packed_model() : nullptr,
                                               places_named(places),
                                               std::move(more_devices)};
                 py::gil_scoped_release release;
                 return std::make_shared<GraphExecutor>(std::move(trace), device, options);
             }),
             py::arg("trace"), py::arg("device"), py::kw_only(), py::arg("n_blocks"), py::arg("threads") = 0,
             py::arg("kv_dtype") = "f16", py::arg("kernels") = "auto", py::arg("max_rows") = 512,
             py::arg("max_sequences") = 32, py::arg("repack") = "keep", py::arg("cpus") = std::vector<int>{},
             py::arg("packed_cache") = py::none(), py::arg("n_states") = 0, py::arg("kernel_set") = py::none(),
             py::arg("cache_bytes") = 0, py::arg("sums_inputs") = false, py::arg("team_of") = py::none(),
             py::arg("places") = std::map<std::string, std::string>{}, py::arg("more_devices") = std::vector<Device>{})
        .def_static("measure", measure, py::arg("trace"), py::arg("device"), py::kw_only(), py::arg("n_blocks"),
                    py::arg("kv_dtype") = "f16", py::arg("kernels") = "auto", py::arg("max_rows") = 512,
                    py::arg("max_sequences") = 32, py::arg("n_states") = 0, py::arg("kernel_set") = py::none(),
                    py::arg("cache_bytes") = 0, py::arg("places") = std::map<std::string, std::string>{},
                    py::arg("more_devices") = std::vector<Device>{})
        .def_property_readonly("n_vocab", &GraphExecutor::n_vocab)
        .def_property_readonly("n_hidden", &GraphExecutor::n_hidden)
        .def_property_readonly("makes_logits", &GraphExecutor::makes_logits)
        .def_property_readonly("tapped_layers", &GraphExecutor::tapped_layers)
        .def_property_readonly(
            "n_blocks", [](const GraphExecutor &self) { return self.cache().groups().empty() ? 0 : self.n_blocks(0); })
        .def_property_readonly("block_tokens", [](const GraphExecutor &) { return kv_block_tokens; })
        .def_property_readonly("max_rows", &GraphExecutor::max_rows)
        .def_property_readonly("max_logit_rows", &GraphExecutor::max_logit_rows)
        .def_property_readonly("max_sequences", &GraphExecutor::max_sequences)
        .def_property_readonly("kernels",
                               [](const GraphExecutor &self) { return self.uses_own_kernels() ? "cpu" : "stock"; })
        .def_property_readonly("kernel_set",
                               [](const GraphExecutor &self) {
                                   const KernelSet *set = self.kernel_set();
                                   return set ? std::optional(*set) : std::nullopt;
                               })
        .def_property_readonly("threads", &GraphExecutor::n_threads)
        .def("input_sums", input_sums)
        .def_property_readonly("n_graphs", &GraphExecutor::n_graphs)
        .def_property_readonly("n_nodes", &GraphExecutor::n_nodes)
        .def_property_readonly("stock_operations", &GraphExecutor::stock_operations)
        .def_property_readonly(
            "packed_from_cache",
            [](const GraphExecutor &self) { return self.packed_model() && self.packed_model()->from_cache(); })
        .def_property_readonly("packed_cache_notes",
                               [](const GraphExecutor &self) {
                                   return self.packed_model() ? self.packed_model()->cache_notes()
                                                              : std::vector<std::string>{};
                               })
        .def_property_readonly("memory_bytes",
                               [](const GraphExecutor &self) {
                                   return std::map<std::string, size_t>{{"cache", self.cache_bytes()},
                                                                        {"compute", self.compute_bytes()},
                                                                        {"packed", self.packed_bytes()}};
                               })
        .def_property_readonly("device_bytes",
                               [](const GraphExecutor &self) {
                                   std::vector<std::map<std::string, size_t>> found;
                                   for (const auto &there : self.device_bytes()) found.push_back(named_bytes(there));
                                   return found;
                               })
        .def_property_readonly("n_pieces", &GraphExecutor::n_pieces)
        .def_property_readonly("adapter_bytes", &GraphExecutor::adapter_bytes)
        .def("keep_adapters_within", &GraphExecutor::keep_adapters_within, py::arg("size_bytes"))
        .def(
            "adapter",
            [](const GraphExecutor &self, const py::bytes &identity,
               const std::vector<AdapterPair> &pairs) {
                std::string name = identity;
                py::gil_scoped_release release;
                return self.adapter(std::move(name), pairs);
            },
            py::arg("identity"), py::arg("pairs"))
        .def(
            "run",
            [](GraphExecutor &self, std::vector<int32_t> tokens, std::vector<int32_t> positions,
               std::vector<int32_t> slots, std::vector<int32_t> logit_rows, std::vector<int32_t> row_begin,
               std::vector<int32_t> n_kv, const std::vector<std::vector<int32_t>> &tables, std::vector<int32_t> states,
               std::vector<int32_t> axes, std::vector<int32_t> token_types, const Tables &source_tables,
               std::vector<int32_t> n_source,
               const std::optional<py::array_t<float, py::array::c_style | py::array::forcecast>> &features,
               std::vector<int32_t> likeliest, const std::vector<int32_t> &last_visible) {
                StepBatch batch;
                batch.likeliest = std::move(likeliest);
                if (features) batch.features = {features->data(), static_cast<size_t>(features->size())};
                if (token_types.empty()) token_types.resize(tokens.size());
                batch.token_types = std::move(token_types);
                batch.tokens = std::move(tokens);
                batch.positions = std::move(positions);
                batch.logit_rows = std::move(logit_rows);
                batch.row_begin = std::move(row_begin);
                batch.n_kv = std::move(n_kv);
                batch.states = std::move(states);
                batch.axes = std::move(axes);
                batch.groups.assign(self.cache().groups().size(), GroupBatch{std::move(slots), {}, {}});
                for (size_t g = 0; g < batch.groups.size(); ++g)
                    if (self.cache().groups()[g].lifetime.bidirectional_media)
                        batch.groups[g].last_visible = last_visible;
                return run_step(self, std::move(batch), tables, source_tables, std::move(n_source));
            },
            py::arg("tokens"), py::kw_only(), py::arg("positions"), py::arg("slots"), py::arg("logit_rows"),
            py::arg("row_begin"), py::arg("n_kv"), py::arg("tables"), py::arg("states") = std::vector<int32_t>{},
            py::arg("axes") = std::vector<int32_t>{}, py::arg("token_types") = std::vector<int32_t>{},
            py::arg("source_tables") = Tables{}, py::arg("n_source") = std::vector<int32_t>{},
            py::arg("features") = py::none(), py::arg("likeliest") = std::vector<int32_t>{},
            py::arg("last_visible") = std::vector<int32_t>{})
        .def("copy_block", &GraphExecutor::copy_block, py::arg("group"), py::arg("from_block"), py::arg("to_block"),
             py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("n_features", &GraphExecutor::n_features)
        .def_property_readonly("n_features_read", &GraphExecutor::n_features_read)
        .def(
            "features",
            [](GraphExecutor &self, int n_rows) {
                if (n_rows < 0 || n_rows > self.max_rows())
                    throw ShapeError("executor", cat("n_rows is ", n_rows, ": expected 0 to ", self.max_rows()));
                const float *data = self.features();
                if (data == nullptr) throw ShapeError("executor", "no features: run a step first");
                py::array_t<float> out({py::ssize_t{n_rows}, static_cast<py::ssize_t>(self.n_features())});
                std::copy(data, data + out.size(), out.mutable_data());
                return out;
            },
            py::arg("n_rows"))
        .def("encode", &encode, py::arg("tokens"), py::kw_only(), py::arg("slots"), py::arg("row_begin"),
             py::arg("tables"))
        .def(
            "tap",
            [](GraphExecutor &self, int layer, int n_rows) {
                const std::vector<int> layers = self.tapped_layers();
                const auto found = std::find(layers.begin(), layers.end(), layer);
                if (found == layers.end())
                    throw ShapeError("executor", cat("layer ", layer, " is not tapped"));
                if (n_rows < 0 || n_rows > self.max_rows())
                    throw ShapeError("executor", cat("n_rows is ", n_rows, ": expected 0 to ", self.max_rows()));
                const auto [data, n] = self.tap(static_cast<size_t>(found - layers.begin()));
                if (data == nullptr) throw ShapeError("executor", "no taps: run a step first");
                py::array_t<float> out({py::ssize_t{n_rows}, static_cast<py::ssize_t>(n)});
                std::copy(data, data + out.size(), out.mutable_data());
                return out;
            },
            py::arg("layer"), py::arg("n_rows"))
        .def(
            "maxima",
            [](GraphExecutor &self, int n_rows) -> std::optional<py::array_t<float>> {
                if (n_rows < 0 || n_rows > self.max_logit_rows())
                    throw ShapeError("executor",
                                     cat("n_rows is ", n_rows, ": expected 0 to ", self.max_logit_rows()));
                if (self.maxima() == nullptr) return std::nullopt;
                py::array_t<float> out({py::ssize_t{n_rows},
                                        static_cast<py::ssize_t>(n_logit_strips(static_cast<size_t>(self.n_vocab())))});
                std::copy(self.maxima(), self.maxima() + out.size(), out.mutable_data());
                return out;
            },
            py::arg("n_rows"));
    m.def(
        "plan_memory",
        [](const std::vector<std::tuple<size_t, int, int>> &values) {
            std::vector<Lifetime> lifetimes;
            for (const auto &[size_bytes, first, last] : values) lifetimes.push_back({size_bytes, first, last});
            MemoryPlan plan = plan_memory(lifetimes);
            return std::make_pair(plan.offsets, plan.size_bytes);
        },
        py::arg("values"));
    m.def("packed_row_bytes", &packed_row_bytes, py::arg("dtype"), py::arg("n"));
    m.def(
        "cache_bytes_per_block",
        [](const std::vector<CacheSpec> &cache, const std::string &kv) {
            return CacheLayout(cache, cache_types_from_name(kv)).block_bytes();
        },
        py::arg("cache"), py::arg("kv_dtype"));
}

} // namespace quire::bindings
