#include <pybind11/stl.h>

#include "bindings/testing/bind_testing.h"
#include "testing/fake_executor.h"
#include "testing/scripted_drafter.h"

namespace quire::bindings {
namespace py = pybind11;

void bind_fakes(py::module_ &m) {
    const FakeExecutorOptions d;
    py::class_<FakeExecutor, Executor, std::shared_ptr<FakeExecutor>>(m, "FakeExecutor")
        .def(py::init([](int n_vocab, int n_blocks, int block_tokens, int max_rows, int max_logit_rows,
                         int max_sequences, int max_kv_tokens, double step_s, std::optional<int32_t> fail_on,
                         std::optional<int32_t> nan_after, const std::vector<std::pair<int, int>> &layers,
                         int64_t n_state, int n_states, std::optional<size_t> budget_bytes, bool undivided_prompts,
                         std::optional<int> fail_copy, bool reads_source, bool shows_features, bool reads_features,
                         int media_width) {
                 std::vector<CacheLifetime> lifetimes;
                 for (const auto &[window, chunk] : layers)
                     lifetimes.push_back({window, chunk, false, media_width > 0});
                 if (reads_source) lifetimes.push_back({0, 0, true});
                 return std::make_shared<FakeExecutor>(FakeExecutorOptions{
                     n_vocab, n_blocks, block_tokens, max_rows, max_logit_rows, max_sequences, max_kv_tokens, step_s,
                     fail_on, nan_after, std::move(lifetimes), n_state, n_states, budget_bytes, undivided_prompts,
                     fail_copy, shows_features, reads_features, media_width});
             }),
             py::kw_only(), py::arg("n_vocab") = d.n_vocab, py::arg("n_blocks") = d.n_blocks,
             py::arg("block_tokens") = d.block_tokens, py::arg("max_rows") = d.max_rows,
             py::arg("max_logit_rows") = d.max_logit_rows, py::arg("max_sequences") = d.max_sequences,
             py::arg("max_kv_tokens") = d.max_kv_tokens, py::arg("step_s") = d.step_s, py::arg("fail_on") = py::none(),
             py::arg("nan_after") = py::none(), py::arg("layers") = std::vector<std::pair<int, int>>{{0, 0}},
             py::arg("n_state") = d.n_state, py::arg("n_states") = d.n_states, py::arg("budget_bytes") = py::none(),
             py::arg("undivided_prompts") = d.undivided_prompts, py::arg("fail_copy") = py::none(),
             py::arg("reads_source") = false, py::arg("shows_features") = false, py::arg("reads_features") = false,
             py::arg("media_width") = d.media_width);
    py::class_<ScriptedDrafter, Drafter, std::shared_ptr<ScriptedDrafter>>(m, "ScriptedDrafter")
        .def(py::init<std::vector<std::vector<int32_t>>, double, uint64_t, int32_t, double>(), py::arg("scripts"),
             py::kw_only(), py::arg("agreement"), py::arg("seed") = 0, py::arg("n_vocab"),
             py::arg("token_read_s") = 0.0);
}

} // namespace quire::bindings
