#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "graph/fused.h"
#include "graph/graph_executor.h"
#include "graph/memory_plan.h"
#include "graph/tracer.h"
#include "graph/weight_types.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

template <class Value> struct Named {
    const char *name;
    Value value;
};

// The value called `text`; UnsupportedError lists the names.
template <class Value, size_t N>
Value parse(const char *place, const char *what, const std::string &text, const Named<Value> (&names)[N]) {
    std::string known;
    for (const auto &named : names) {
        if (text == named.name) return named.value;
        known += cat(known.empty() ? "" : ", ", named.name);
    }
    throw UnsupportedError(place, cat(what, " must be one of ", known, " but is '", text, "'"));
}

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

py::tuple shape_of(const TraceTensor &x) {
    py::list dims;
    dims.append(x.shape().lead == Lead::tokens ? "tokens" : "rows");
    for (int64_t dim : x.shape().rest) dims.append(dim);
    return py::tuple(dims);
}

void bind_specs(py::module_ &m) {
    py::class_<Weight, std::shared_ptr<Weight>>(m, "Weight")
        .def(py::init([](std::string name, Tensor tensor) {
                 return std::make_shared<Weight>(Weight{std::move(name), std::move(tensor)});
             }),
             py::arg("name"), py::arg("tensor"))
        .def(
            "part",
            [](const Weight &self, int64_t begin, int64_t end) {
                return std::make_shared<Weight>(
                    Weight{cat(self.name, "[", begin, ":", end, "]"), self.tensor.part(begin, end)});
            },
            py::arg("begin"), py::arg("end"))
        .def_readonly("name", &Weight::name)
        .def_property_readonly("shape", [](const Weight &self) { return py::tuple(py::cast(self.tensor.shape())); })
        .def_property_readonly("dtype", [](const Weight &self) { return name(self.tensor.dtype()); });
    py::class_<CacheSpec>(m, "CacheSpec")
        .def(py::init([](int n_kv_head, int head_dim, std::optional<int> v_head_dim, int window, int chunk,
                         const std::vector<std::pair<std::string, int64_t>> &states, bool of_source) {
                 CacheSpec spec;
                 if (n_kv_head != 0 || head_dim != 0)
                     spec.rows =
                         CacheRows{n_kv_head, head_dim, v_head_dim.value_or(head_dim), window, chunk, false, of_source};
                 for (const auto &[name, n] : states) spec.states.push_back({name, n});
                 return spec;
             }),
             py::kw_only(), py::arg("n_kv_head") = 0, py::arg("head_dim") = 0, py::arg("v_head_dim") = py::none(),
             py::arg("window") = 0, py::arg("chunk") = 0,
             py::arg("states") = std::vector<std::pair<std::string, int64_t>>{}, py::arg("of_source") = false)
        .def_static(
            "latent", [](int rank, int n_rot) { return CacheSpec{latent_rows(rank, n_rot), {}}; }, py::kw_only(),
            py::arg("rank"), py::arg("n_rot"))
        .def_property_readonly("v_in_k", [](const CacheSpec &self) { return self.rows && self.rows->v_in_k; })
        .def_property_readonly("n_kv_head", [](const CacheSpec &self) { return self.rows ? self.rows->n_kv_head : 0; })
        .def_property_readonly("head_dim", [](const CacheSpec &self) { return self.rows ? self.rows->head_dim : 0; })
        .def_property_readonly("v_head_dim",
                               [](const CacheSpec &self) { return self.rows ? self.rows->v_head_dim : 0; })
        .def_property_readonly("window", [](const CacheSpec &self) { return self.rows ? self.rows->window : 0; })
        .def_property_readonly("chunk", [](const CacheSpec &self) { return self.rows ? self.rows->chunk : 0; })
        .def_property_readonly("of_source", [](const CacheSpec &self) { return self.rows && self.rows->of_source; })
        .def_property_readonly("states", [](const CacheSpec &self) {
            std::vector<std::pair<std::string, int64_t>> states;
            for (const CacheState &state : self.states) states.emplace_back(state.name, state.n);
            return states;
        });
    py::class_<RopeSpec>(m, "RopeSpec")
        .def(py::init([](int n_dims, const std::string &layout, float freq_base, float freq_scale, float ext_factor,
                         float attn_factor, float beta_fast, float beta_slow, int n_ctx_orig,
                         std::shared_ptr<Weight> factors, std::array<int, 3> sections, bool take_turns) {
                 static constexpr Named<RopeLayout> layouts[] = {{"half", RopeLayout::half},
                                                                 {"interleaved", RopeLayout::interleaved}};
                 return RopeSpec{n_dims,     parse("rope", "layout", layout, layouts),
                                 freq_base,  freq_scale,
                                 ext_factor, attn_factor,
                                 beta_fast,  beta_slow,
                                 n_ctx_orig, std::move(factors),
                                 sections,   take_turns};
             }),
             py::kw_only(), py::arg("n_dims"), py::arg("layout"), py::arg("freq_base"), py::arg("freq_scale") = 1.0F,
             py::arg("ext_factor") = 0.0F, py::arg("attn_factor") = 1.0F, py::arg("beta_fast") = 32.0F,
             py::arg("beta_slow") = 1.0F, py::arg("n_ctx_orig") = 0, py::arg("factors") = py::none(),
             py::arg("sections") = std::array<int, 3>{}, py::arg("take_turns") = false);
    py::class_<MoeSpec>(m, "MoeSpec")
        .def(py::init([](int n_used, const std::string &act, const std::string &gating, bool normalize, float scale,
                         int n_group, int n_group_used, const std::string &group_score, const std::string &unit,
                         bool is_squared, float alpha, float limit, bool weighs_input) {
                 static constexpr Named<Gating> gatings[] = {{"softmax", Gating::softmax},
                                                             {"sigmoid", Gating::sigmoid},
                                                             {"softmax_of_chosen", Gating::softmax_of_chosen}};
                 static constexpr Named<GroupScore> scores[] = {{"largest", GroupScore::largest},
                                                                {"two_largest", GroupScore::two_largest}};
                 static constexpr Named<ExpertUnit> units[] = {{"gated", ExpertUnit::gated},
                                                               {"clamped_swiglu", ExpertUnit::clamped_swiglu},
                                                               {"ungated", ExpertUnit::ungated}};
                 const Routing routing{
                     n_used,       parse("moe", "gating", gating, gatings),         normalize, scale, n_group,
                     n_group_used, parse("moe", "group_score", group_score, scores)};
                 return MoeSpec{
                     routing,     parse("moe", "unit", unit, units), activation_named(act), is_squared, alpha, limit,
                     weighs_input};
             }),
             py::kw_only(), py::arg("n_used"), py::arg("activation") = "silu", py::arg("gating") = "softmax",
             py::arg("normalize") = true, py::arg("scale") = 1.0F, py::arg("n_group") = 1, py::arg("n_group_used") = 1,
             py::arg("group_score") = "two_largest", py::arg("unit") = "gated", py::arg("is_squared") = false,
             py::arg("alpha") = 1.702F, py::arg("limit") = 7.0F, py::arg("weighs_input") = false);
}

void bind_tracer(py::module_ &m) {
    py::class_<TraceTensor>(m, "TraceTensor")
        .def_property_readonly("shape", &shape_of)
        .def("__add__", &add, py::arg("other"))
        .def("__mul__", &multiply, py::arg("other"))
        .def("__mul__", &scale, py::arg("other"))
        .def("heads", &heads, py::arg("n_head"))
        .def("merge_heads", &merge_heads)
        .def("__repr__", [](const TraceTensor &self) {
            return cat("TraceTensor(%", self.id, ", ", py::repr(shape_of(self)).cast<std::string>(), ")");
        });
    py::class_<Trace>(m, "Trace")
        .def_property_readonly("n_vocab", [](const Trace &self) { return self.n_vocab; })
        .def_property_readonly("n_layer", [](const Trace &self) { return self.cache.size(); })
        .def_property_readonly(
            "encoder", [](const Trace &self) { return self.encoder ? std::optional(*self.encoder) : std::nullopt; })
        .def("describe", [](const Trace &self) {
            std::vector<std::string> lines;
            for (size_t i = 0; i < self.operations.size(); ++i)
                lines.push_back(cat("%", i, " = ", describe(self.operations[i])));
            return lines;
        });
    py::class_<Tracer, std::shared_ptr<Tracer>>(m, "Tracer")
        .def(py::init([](std::vector<CacheSpec> cache) { return Tracer::make(std::move(cache)); }), py::arg("cache"))
        .def_property_readonly("tokens", &Tracer::tokens)
        .def_property_readonly("positions", &Tracer::positions)
        .def_property_readonly("token_types", &Tracer::token_types)
        .def_property_readonly("logit_rows", &Tracer::logit_rows)
        .def("tap", &Tracer::tap, py::arg("layer"), py::arg("x"))
        .def_property_readonly("tapped_layers",
                               [](const Tracer &self) {
                                   std::vector<int> layers;
                                   for (const Tap &tap : self.taps()) layers.push_back(tap.layer);
                                   return layers;
                               })
        .def(
            "finish",
            [](Tracer &self, const TraceTensor &logits, const Trace *encoder) {
                return self.finish(logits, OutputKind::logits,
                                   encoder ? std::make_shared<const Trace>(*encoder) : nullptr);
            },
            py::arg("logits"), py::kw_only(), py::arg("encoder") = nullptr)
        .def(
            "finish_vectors",
            [](Tracer &self, const TraceTensor &vectors) { return self.finish(vectors, OutputKind::vectors); },
            py::arg("vectors"));
}

void bind_operations(py::module_ &m) {
    using MaybeWeight = std::shared_ptr<Weight>;
    m.def(
        "embed", [](const TraceTensor &tokens, MaybeWeight weight) { return embed(tokens, std::move(weight)); },
        py::arg("tokens"), py::arg("weight").none(false));
    m.def(
        "linear",
        [](const TraceTensor &x, MaybeWeight weight, MaybeWeight bias) {
            return linear(x, std::move(weight), std::move(bias));
        },
        py::arg("x"), py::arg("weight").none(false), py::arg("bias") = py::none());
    m.def(
        "rms_norm",
        [](const TraceTensor &x, MaybeWeight weight, float eps) { return rms_norm(x, std::move(weight), eps); },
        py::arg("x"), py::arg("weight"), py::arg("eps"));
    m.def("rope", &rope, py::arg("x"), py::arg("positions"), py::arg("spec"));
    m.def(
        "attend",
        [](int layer, const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, float scale, float cap,
           MaybeWeight sinks, MaybeWeight bias) {
            return attend({q, k, v}, AttendSpec{layer, scale, cap, std::move(sinks), std::move(bias)});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("scale"),
        py::arg("soft_cap") = 0.0F, py::arg("sinks") = py::none(), py::arg("bias") = py::none());
    m.def(
        "attend_latent",
        [](int layer, const TraceTensor &q, const TraceTensor &k, float scale, float cap) {
            return attend_latent(q, k, AttendSpec{layer, scale, cap, nullptr, nullptr});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F);
    m.def(
        "attend_to_written",
        [](int layer, const TraceTensor &q, float scale, float cap, MaybeWeight sinks, MaybeWeight bias) {
            return attend_to_written(q, AttendSpec{layer, scale, cap, std::move(sinks), std::move(bias)});
        },
        py::arg("layer"), py::arg("q"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F,
        py::arg("sinks") = py::none(), py::arg("bias") = py::none());
    m.def("write_source", &write_source, py::arg("layer"), py::arg("k"), py::arg("v"));
    m.def(
        "attend_rows",
        [](const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, float scale, float cap, int window,
           MaybeWeight bias) { return attend_rows({q, k, v}, AttendRowsSpec{scale, cap, window, std::move(bias)}); },
        py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F,
        py::arg("window") = 0, py::arg("bias") = py::none());
    m.def(
        "glu",
        [](const TraceTensor &gate, const TraceTensor &up, const std::string &act) {
            return glu(gate, up, activation_named(act));
        },
        py::arg("gate"), py::arg("up"), py::arg("activation"));
    m.def(
        "activate", [](const TraceTensor &x, const std::string &act) { return activate(x, activation_named(act)); },
        py::arg("x"), py::arg("activation"));
    m.def("soft_cap", &soft_cap, py::arg("x"), py::arg("cap"));
    m.def("select_rows", &select_rows, py::arg("x"), py::arg("rows"));
    m.def(
        "moe",
        [](const TraceTensor &x, const TraceTensor &scores, MaybeWeight gate, MaybeWeight up, MaybeWeight down,
           const MoeSpec &spec, MaybeWeight selection_bias, MaybeWeight expert_scale, MaybeWeight gate_bias,
           MaybeWeight up_bias, MaybeWeight down_bias) {
            return moe(x, scores,
                       {std::move(gate), std::move(up), std::move(down), std::move(selection_bias),
                        std::move(expert_scale), std::move(gate_bias), std::move(up_bias), std::move(down_bias)},
                       spec);
        },
        py::arg("x"), py::arg("scores"), py::arg("gate"), py::arg("up").none(false), py::arg("down").none(false),
        py::arg("spec"), py::kw_only(), py::arg("selection_bias") = py::none(), py::arg("expert_scale") = py::none(),
        py::arg("gate_bias") = py::none(), py::arg("up_bias") = py::none(), py::arg("down_bias") = py::none());
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
    if (!source) throw UnsupportedError("executor", "the model must encode source texts but does not");
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
    std::copy(logits, logits + out.size(), out.mutable_data());
    return out;
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
    py::class_<GraphExecutor, Executor, std::shared_ptr<GraphExecutor>>(m, "Executor")
        .def(py::init([](Trace trace, const Device &device, int n_blocks, int threads, const std::string &kv,
                         const std::string &kernels, int max_rows, int max_sequences, const std::string &repack_mode,
                         std::vector<int> cpus, std::optional<PackedCacheOptions> packed_cache, int n_states,
                         std::optional<KernelSet> kernel_set, size_t cache_bytes, bool sums_inputs,
                         const std::shared_ptr<GraphExecutor> &team_of) {
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
                                               team_of ? team_of->team() : nullptr};
                 py::gil_scoped_release release;
                 return std::make_shared<GraphExecutor>(std::move(trace), device, options);
             }),
             py::arg("trace"), py::arg("device"), py::kw_only(), py::arg("n_blocks"), py::arg("threads") = 0,
             py::arg("kv_dtype") = "f16", py::arg("kernels") = "auto", py::arg("max_rows") = 512,
             py::arg("max_sequences") = 32, py::arg("repack") = "keep", py::arg("cpus") = std::vector<int>{},
             py::arg("packed_cache") = py::none(), py::arg("n_states") = 0, py::arg("kernel_set") = py::none(),
             py::arg("cache_bytes") = 0, py::arg("sums_inputs") = false, py::arg("team_of") = py::none())
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
        .def(
            "run",
            [](GraphExecutor &self, std::vector<int32_t> tokens, std::vector<int32_t> positions,
               std::vector<int32_t> slots, std::vector<int32_t> logit_rows, std::vector<int32_t> row_begin,
               std::vector<int32_t> n_kv, const std::vector<std::vector<int32_t>> &tables, std::vector<int32_t> states,
               std::vector<int32_t> axes, std::vector<int32_t> token_types, const Tables &source_tables,
               std::vector<int32_t> n_source) {
                StepBatch batch;
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
                return run_step(self, std::move(batch), tables, source_tables, std::move(n_source));
            },
            py::arg("tokens"), py::kw_only(), py::arg("positions"), py::arg("slots"), py::arg("logit_rows"),
            py::arg("row_begin"), py::arg("n_kv"), py::arg("tables"), py::arg("states") = std::vector<int32_t>{},
            py::arg("axes") = std::vector<int32_t>{}, py::arg("token_types") = std::vector<int32_t>{},
            py::arg("source_tables") = Tables{}, py::arg("n_source") = std::vector<int32_t>{})
        .def("encode", &encode, py::arg("tokens"), py::kw_only(), py::arg("slots"), py::arg("row_begin"),
             py::arg("tables"))
        .def(
            "tap",
            [](GraphExecutor &self, int layer, int n_rows) {
                const std::vector<int> layers = self.tapped_layers();
                const auto found = std::find(layers.begin(), layers.end(), layer);
                if (found == layers.end())
                    throw ShapeError("executor", cat("layer ", layer, " must be tapped but is not"));
                if (n_rows < 0 || n_rows > self.max_rows())
                    throw ShapeError("executor", cat("n_rows must be 0 to ", self.max_rows(), " but is ", n_rows));
                const auto [data, n] = self.tap(static_cast<size_t>(found - layers.begin()));
                if (data == nullptr) throw ShapeError("executor", "a step must come before its taps are read");
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
                                     cat("n_rows must be 0 to ", self.max_logit_rows(), " but is ", n_rows));
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

} // namespace

Activation activation_named(const std::string &text) {
    static constexpr Named<Activation> names[] = {{"silu", Activation::silu},
                                                  {"gelu", Activation::gelu},
                                                  {"gelu_tanh", Activation::gelu_tanh},
                                                  {"relu", Activation::relu}};
    return parse("activation", "the activation", text, names);
}

void bind_graph(py::module_ &m) {
    bind_specs(m);
    bind_tracer(m);
    bind_operations(m);
    bind_primitives(m);
    bind_executor(m);
}

} // namespace quire::bindings
