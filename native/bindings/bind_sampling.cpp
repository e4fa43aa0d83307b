#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "engine/sampling/log_probs.h"
#include "engine/sampling/sampling_params.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

std::vector<std::string> stage_names(const SamplingParams &self) {
    std::vector<std::string> names;
    for (SamplingStage stage : self.samplers) names.push_back(name(stage));
    return names;
}

void set_stages(SamplingParams &self, const std::vector<std::string> &names) {
    self.samplers.clear();
    for (const std::string &text : names) self.samplers.push_back(sampling_stage(text));
}

void bind_params(py::module_ &m) {
    using P = SamplingParams;
    py::class_<P, std::shared_ptr<P>> params(m, "SamplingParams");
    params.def(py::init<>())
        .def(
            "validate", [](const P &self, const VocabInfo *vocab) { vocab ? self.validate(*vocab) : self.validate(); },
            py::arg("vocab") = nullptr);
    visit_sampling_fields([&](const char *name, auto member, const auto &) {
        if constexpr (std::is_same_v<decltype(member), std::vector<SamplingStage> SamplingFields::*>) {
            params.def_property(name, &stage_names, &set_stages);
        } else {
            params.def_readwrite(name, member);
        }
    });
}

void bind_sampled_token(py::module_ &m) {
    py::class_<SampledToken>(m, "SampledToken")
        .def_readonly("id", &SampledToken::id)
        .def_readonly("logprob", &SampledToken::logprob)
        .def_readonly("top", &SampledToken::top)
        .def("__repr__", [](const SampledToken &self) {
            return cat("SampledToken(id=", self.id, ", logprob=", self.logprob, ")");
        });
}

} // namespace

void bind_sampling(py::module_ &m) {
    py::class_<VocabInfo, std::shared_ptr<VocabInfo>>(m, "VocabInfo")
        .def(py::init([](int32_t n_vocab, std::vector<int32_t> eog_ids, const py::sequence &token_bytes) {
                 auto vocab = std::make_shared<VocabInfo>();
                 vocab->n_vocab = n_vocab;
                 vocab->eog_ids = std::move(eog_ids);
                 vocab->token_bytes.reserve(py::len(token_bytes));
                 for (py::handle bytes : token_bytes) {
                     if (!py::isinstance<py::bytes>(bytes))
                         throw py::type_error("token_bytes has an item that is not bytes");
                     vocab->token_bytes.push_back(bytes.cast<py::bytes>());
                 }
                 vocab->validate();
                 return vocab;
             }),
             py::arg("n_vocab"), py::arg("eog_ids"), py::arg("token_bytes"))
        .def_readonly("n_vocab", &VocabInfo::n_vocab)
        .def_readonly("eog_ids", &VocabInfo::eog_ids);
    bind_params(m);
    bind_sampled_token(m);
    m.def("default_sampling_order", [] {
        SamplingParams params;
        return stage_names(params);
    });
}

} // namespace quire::bindings
