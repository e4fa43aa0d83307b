#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/testing/bind_testing.h"
#include "bindings/token_mask.h"
#include "core/error.h"
#include "engine/decoding/stop_matcher.h"
#include "engine/sampling/log_probs.h"
#include "engine/sampling/random.h"
#include "engine/sampling/sampler.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Row = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::span<const float> row_of(const Row &logits) {
    if (logits.ndim() != 1) throw ShapeError("sampler", cat("logits have ", logits.ndim(), " dimensions: expected 1"));
    return {logits.data(), static_cast<size_t>(logits.size())};
}

// A copy is lent to the sampler, as others may read Python's arrays meanwhile; it must come back as it was.
class LentCopy {
  public:
    explicit LentCopy(std::span<const float> source) : source_(source), numbers_(source.begin(), source.end()) {}
    std::span<float> numbers() { return numbers_; }
    void check() const {
        if (!std::ranges::equal(std::as_bytes(std::span(numbers_)), std::as_bytes(source_)))
            throw InternalError("sampler", "the sampler changed a row and did not restore it");
    }

  private:
    std::span<const float> source_;
    std::vector<float> numbers_;
};

SampledToken sample_copy(Sampler &sampler, std::span<const float> row, std::span<const float> maxima,
                         std::span<const int32_t> tokens, int64_t n_prompt, const TokenMask *mask) {
    LentCopy own_row(row), own_maxima(maxima);
    const auto check = [&] { own_row.check(), own_maxima.check(); };
    try {
        SampledToken drawn = sampler.sample({own_row.numbers(), own_maxima.numbers()}, tokens, n_prompt, mask);
        check();
        return drawn;
    } catch (const Error &) {
        check();
        throw;
    }
}

std::optional<TokenMask> mask_of(const std::optional<MaskWords> &words, std::span<const float> row) {
    if (!words) return std::nullopt;
    return TokenMask(words_of(*words), static_cast<int32_t>(row.size()));
}

} // namespace

void bind_sampler(py::module_ &m) {
    py::class_<Sampler>(m, "Sampler")
        .def(py::init([](std::shared_ptr<SamplingParams> params, std::shared_ptr<VocabInfo> vocab, int32_t choice,
                         TokenSequences bad_sequences) {
                 return Sampler(std::make_shared<const SamplingParams>(*params), std::move(vocab), choice,
                                std::move(bad_sequences));
             }),
             py::arg("params"), py::arg("vocab"), py::arg("choice") = 0, py::arg("bad_sequences") = TokenSequences())
        .def(
            "sample",
            [](Sampler &self, const Row &logits, const std::vector<int32_t> &tokens, int64_t n_prompt,
               const std::optional<MaskWords> &words, const std::optional<Row> &maxima) {
                const std::span<const float> row = row_of(logits);
                const std::optional<TokenMask> mask = mask_of(words, row);
                const std::span<const float> largest = maxima ? row_of(*maxima) : std::span<const float>();
                const size_t n_strips = n_logit_strips(row.size());
                if (maxima && largest.size() != n_strips) {
                    throw ShapeError("sampler", cat("maxima are ", largest.size(), " numbers: expected ", n_strips));
                }
                py::gil_scoped_release release;
                return sample_copy(self, row, largest, tokens, n_prompt, mask ? &*mask : nullptr);
            },
            py::arg("logits"), py::arg("tokens"), py::arg("n_prompt"), py::arg("mask").noconvert() = py::none(),
            py::arg("maxima") = py::none())
        .def(
            "distribution",
            [](Sampler &self, const Row &logits, const std::vector<int32_t> &tokens, int64_t n_prompt,
               const std::optional<MaskWords> &words) {
                const std::span<const float> row = row_of(logits);
                const std::optional<TokenMask> mask = mask_of(words, row);
                const auto left = self.distribution(row, tokens, n_prompt, mask ? &*mask : nullptr);
                py::array_t<int32_t> ids(static_cast<py::ssize_t>(left.size()));
                py::array_t<float> probs(static_cast<py::ssize_t>(left.size()));
                for (size_t i = 0; i < left.size(); ++i) {
                    ids.mutable_data()[i] = left[i].first;
                    probs.mutable_data()[i] = left[i].second;
                }
                return py::make_tuple(ids, probs);
            },
            py::arg("logits"), py::arg("tokens"), py::arg("n_prompt"), py::arg("mask").noconvert() = py::none());
    m.def("log_sum_exp", [](const Row &logits) { return log_sum_exp(row_of(logits)); }, py::arg("logits"));
    m.def(
        "log_probs_of",
        [](const Row &logits, int32_t id, int32_t n_top) { return log_probs_of(row_of(logits), id, n_top); },
        py::arg("logits"), py::arg("id"), py::arg("n_top") = 0);
    py::class_<StopMatcher>(m, "StopMatcher")
        .def(py::init([](std::vector<std::string> stop, bool include_stop) {
                 return StopMatcher(std::move(stop), include_stop ? StopText::include : StopText::exclude);
             }),
             py::arg("stop"), py::kw_only(), py::arg("include_stop") = false)
        .def(
            "push", [](StopMatcher &self, const py::bytes &bytes) { return self.push(std::string_view(bytes)); },
            py::arg("data"))
        .def("finish", &StopMatcher::finish)
        .def_property_readonly("stopped", &StopMatcher::stopped)
        .def_property_readonly("matched", &StopMatcher::matched);
    m.def("philox4x32_10", &philox4x32_10, py::arg("counter"), py::arg("key"));
    m.def(
        "token_random",
        [](uint64_t seed, uint32_t choice, uint64_t position) {
            const TokenRandom random = token_random(seed, choice, position);
            return py::make_tuple(random.draw, random.xtc);
        },
        py::arg("seed"), py::arg("choice"), py::arg("position"));
}

} // namespace quire::bindings
