#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/named.h"
#include "core/error.h"
#include "graph/trace/fused_operations.h"
#include "graph/trace/tracer.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

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
                         const std::vector<std::pair<std::string, int64_t>> &states, bool of_source,
                         bool bidirectional_media) {
                 CacheSpec spec;
                 if (n_kv_head != 0 || head_dim != 0)
                     spec.rows =
                         CacheRows{n_kv_head, head_dim,           v_head_dim.value_or(head_dim), window, chunk, false,
                                   of_source, bidirectional_media};
                 for (const auto &[name, n] : states) spec.states.push_back({name, n});
                 return spec;
             }),
             py::kw_only(), py::arg("n_kv_head") = 0, py::arg("head_dim") = 0, py::arg("v_head_dim") = py::none(),
             py::arg("window") = 0, py::arg("chunk") = 0,
             py::arg("states") = std::vector<std::pair<std::string, int64_t>>{}, py::arg("of_source") = false,
             py::arg("bidirectional_media") = false)
        .def_static(
            "latent",
            [](int rank, int n_rot, int window, int every) {
                CacheRows rows = latent_rows(rank, n_rot);
                rows.window = window;
                rows.every = every;
                return CacheSpec{rows, {}};
            },
            py::kw_only(), py::arg("rank"), py::arg("n_rot"), py::arg("window") = 0, py::arg("every") = 1)
        .def_property_readonly("every", [](const CacheSpec &self) { return self.rows ? self.rows->every : 1; })
        .def_property_readonly("v_in_k", [](const CacheSpec &self) { return self.rows && self.rows->v_in_k; })
        .def_property_readonly("n_kv_head", [](const CacheSpec &self) { return self.rows ? self.rows->n_kv_head : 0; })
        .def_property_readonly("head_dim", [](const CacheSpec &self) { return self.rows ? self.rows->head_dim : 0; })
        .def_property_readonly("v_head_dim",
                               [](const CacheSpec &self) { return self.rows ? self.rows->v_head_dim : 0; })
        .def_property_readonly("window", [](const CacheSpec &self) { return self.rows ? self.rows->window : 0; })
        .def_property_readonly("chunk", [](const CacheSpec &self) { return self.rows ? self.rows->chunk : 0; })
        .def_property_readonly("of_source", [](const CacheSpec &self) { return self.rows && self.rows->of_source; })
        .def_property_readonly("bidirectional_media",
                               [](const CacheSpec &self) { return self.rows && self.rows->bidirectional_media; })
        .def_property_readonly("states", [](const CacheSpec &self) {
            std::vector<std::pair<std::string, int64_t>> states;
            for (const CacheState &state : self.states) states.emplace_back(state.name, state.n);
            return states;
        });
    py::class_<RopeSpec>(m, "RopeSpec")
        .def(py::init([](int n_dims, const std::string &layout, float freq_base, float freq_scale, float ext_factor,
                         float attn_factor, float beta_fast, float beta_slow, int n_ctx_orig,
                         std::shared_ptr<Weight> factors, std::array<int, 3> sections, bool take_turns, bool inverse,
                         int behind) {
                 static constexpr Named<RopeLayout> layouts[] = {{"half", RopeLayout::half},
                                                                 {"interleaved", RopeLayout::interleaved}};
                 return RopeSpec{n_dims,     parse("rope", "layout", layout, layouts),
                                 freq_base,  freq_scale,
                                 ext_factor, attn_factor,
                                 beta_fast,  beta_slow,
                                 n_ctx_orig, std::move(factors),
                                 sections,   take_turns,
                                 inverse,    behind};
             }),
             py::kw_only(), py::arg("n_dims"), py::arg("layout"), py::arg("freq_base"), py::arg("freq_scale") = 1.0F,
             py::arg("ext_factor") = 0.0F, py::arg("attn_factor") = 1.0F, py::arg("beta_fast") = 32.0F,
             py::arg("beta_slow") = 1.0F, py::arg("n_ctx_orig") = 0, py::arg("factors") = py::none(),
             py::arg("sections") = std::array<int, 3>{}, py::arg("take_turns") = false, py::arg("inverse") = false,
             py::arg("behind") = 0);
    py::class_<MoeSpec>(m, "MoeSpec")
        .def(py::init([](int n_used, const std::string &act, const std::string &gating, bool normalize, float scale,
                         int n_group, int n_group_used, const std::string &group_score, const std::string &unit,
                         bool is_squared, float alpha, float limit, bool weighs_input) {
                 static constexpr Named<Gating> gatings[] = {{"softmax", Gating::softmax},
                                                             {"sigmoid", Gating::sigmoid},
                                                             {"softmax_of_chosen", Gating::softmax_of_chosen},
                                                             {"sigmoid_of_chosen", Gating::sigmoid_of_chosen},
                                                             {"sparse_mixer", Gating::sparse_mixer},
                                                             {"sqrt_softplus", Gating::sqrt_softplus}};
                 static constexpr Named<GroupScore> scores[] = {{"largest", GroupScore::largest},
                                                                {"two_largest", GroupScore::two_largest}};
                 static constexpr Named<ExpertUnit> units[] = {{"gated", ExpertUnit::gated},
                                                               {"clamped_swiglu", ExpertUnit::clamped_swiglu},
                                                               {"clipped", ExpertUnit::clipped},
                                                               {"clamped", ExpertUnit::clamped},
                                                               {"tanh_capped", ExpertUnit::tanh_capped},
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
        .def_property_readonly("placed_names", &placed_names)
        .def(
            "placed_parts",
            [](const Trace &self, const std::map<std::string, std::string> &places,
               const std::vector<Device> &devices) {
                std::vector<std::tuple<std::map<std::string, size_t>, std::set<int>, size_t>> found;
                for (auto &[place, part] : placed_parts(self, places_named(places), devices)) {
                    const auto number = static_cast<size_t>(static_cast<int>(place) + 1);
                    if (found.size() <= number) found.resize(number + 1);
                    found[number] = {std::move(part.weights), std::move(part.layers), part.state_bytes};
                }
                return found;
            },
            py::arg("places"), py::arg("devices"))
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
                                   for (const Tap &tap : self.taps())
                                       if (tap.layer != features_tap) layers.push_back(tap.layer);
                                   return layers;
                               })
        .def("features", &Tracer::features, py::arg("n"))
        .def(
            "leave_unused",
            [](Tracer &tracer, int layer) {
                tracer.rows_of(layer); // throws if there are none
                tracer.mark_written(layer);
            },
            py::arg("layer"))
        .def("show_features", &Tracer::show_features, py::arg("x"))
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
           MaybeWeight sinks, MaybeWeight bias, std::optional<TraceTensor> picked) {
            return attend({q, k, v}, AttendSpec{layer, scale, cap, std::move(sinks), std::move(bias), picked});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("scale"),
        py::arg("soft_cap") = 0.0F, py::arg("sinks") = py::none(), py::arg("bias") = py::none(),
        py::arg("picked") = py::none());
    m.def(
        "attend_latent",
        [](int layer, const TraceTensor &q, const TraceTensor &k, float scale, float cap, MaybeWeight sinks,
           std::optional<TraceTensor> picked) {
            return attend_latent(q, k, AttendSpec{layer, scale, cap, std::move(sinks), nullptr, picked});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F,
        py::arg("sinks") = py::none(), py::arg("picked") = py::none());
    m.def(
        "pick",
        [](int layer, const TraceTensor &q, const TraceTensor &k, const TraceTensor &weights, int n_picked, int n_ctx) {
            return pick(q, k, weights, {layer, n_picked, n_ctx});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("weights"), py::kw_only(), py::arg("n_picked"),
        py::arg("n_ctx"));
    m.def(
        "pick_blocks",
        [](int layer, const TraceTensor &q, const TraceTensor &k, int block, int n_picked, int n_local) {
            return pick_blocks(q, k, {layer, block, n_picked, n_local});
        },
        py::arg("layer"), py::arg("q"), py::arg("k"), py::kw_only(), py::arg("block"), py::arg("n_picked"),
        py::arg("n_local"));
    m.def(
        "compress",
        [](int layer, const TraceTensor &kv, const TraceTensor &gate, MaybeWeight bias, int every, bool overlaps) {
            return compress(kv, gate, {layer, every, overlaps, std::move(bias)});
        },
        py::arg("layer"), py::arg("kv"), py::arg("gate"), py::arg("bias").none(false), py::kw_only(), py::arg("every"),
        py::arg("overlaps"));
    m.def("attend_pools", &attend_pools, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("picked"), py::kw_only(),
          py::arg("every"), py::arg("scale"));
    m.def(
        "attend_compressed",
        [](int local, int compressed, const TraceTensor &q, const TraceTensor &k, const TraceTensor &rows, float scale,
           MaybeWeight sinks, std::optional<TraceTensor> picked) {
            return attend_compressed(q, k, rows, {local, compressed, scale, std::move(sinks), picked});
        },
        py::arg("local"), py::arg("compressed"), py::arg("q"), py::arg("k"), py::arg("rows"), py::kw_only(),
        py::arg("scale"), py::arg("sinks") = py::none(), py::arg("picked") = py::none());
    m.def(
        "attend_to_written",
        [](int layer, const TraceTensor &q, float scale, float cap, MaybeWeight sinks, MaybeWeight bias,
           std::optional<TraceTensor> picked) {
            return attend_to_written(q, AttendSpec{layer, scale, cap, std::move(sinks), std::move(bias), picked});
        },
        py::arg("layer"), py::arg("q"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F,
        py::arg("sinks") = py::none(), py::arg("bias") = py::none(), py::arg("picked") = py::none());
    m.def("write_source", &write_source, py::arg("layer"), py::arg("k"), py::arg("v"));
    m.def(
        "attend_rows",
        [](const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, float scale, float cap, int window,
           MaybeWeight bias, std::optional<TraceTensor> related) {
            return attend_rows({q, k, v}, AttendRowsSpec{scale, cap, window, std::move(bias), std::move(related)});
        },
        py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F,
        py::arg("window") = 0, py::arg("bias") = py::none(), py::arg("related") = py::none());
    m.def(
        "relate",
        [](const TraceTensor &by_row, const TraceTensor &by_token, std::vector<int32_t> buckets, int n_ctx) {
            return relate(by_row, by_token, {std::move(buckets), n_ctx});
        },
        py::arg("by_row"), py::arg("by_token"), py::kw_only(), py::arg("buckets"), py::arg("n_ctx"));
    m.def(
        "glu",
        [](const TraceTensor &gate, const TraceTensor &up, const std::string &act) {
            return glu(gate, up, activation_named(act));
        },
        py::arg("gate"), py::arg("up"), py::arg("activation"));
    m.def(
        "activate", [](const TraceTensor &x, const std::string &act) { return activate(x, activation_named(act)); },
        py::arg("x"), py::arg("activation"));
    m.def("reshape", &reshape, py::arg("x"), py::arg("rest"));
    m.def(
        "head_linear",
        [](const TraceTensor &x, std::shared_ptr<Weight> weight) { return head_linear(x, std::move(weight)); },
        py::arg("x"), py::arg("weight").none(false));
    m.def("soft_cap", &soft_cap, py::arg("x"), py::arg("cap"));
    m.def("select_rows", &select_rows, py::arg("x"), py::arg("rows"));
    m.def(
        "moe",
        [](const TraceTensor &x, const TraceTensor &scores, MaybeWeight gate, MaybeWeight up, MaybeWeight down,
           const MoeSpec &spec, MaybeWeight selection_bias, MaybeWeight expert_scale, MaybeWeight gate_bias,
           MaybeWeight up_bias, MaybeWeight down_bias, const std::optional<TraceTensor> &chosen) {
            return moe(x, scores,
                       {std::move(gate), std::move(up), std::move(down), std::move(selection_bias),
                        std::move(expert_scale), std::move(gate_bias), std::move(up_bias), std::move(down_bias)},
                       spec, chosen);
        },
        py::arg("x"), py::arg("scores"), py::arg("gate"), py::arg("up").none(false), py::arg("down").none(false),
        py::arg("spec"), py::kw_only(), py::arg("selection_bias") = py::none(), py::arg("expert_scale") = py::none(),
        py::arg("gate_bias") = py::none(), py::arg("up_bias") = py::none(), py::arg("down_bias") = py::none(),
        py::arg("chosen") = py::none());
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
    bind_standalone_operations(m);
    bind_executor(m);
}

} // namespace quire::bindings
