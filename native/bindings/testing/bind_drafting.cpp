#include <pybind11/stl.h>

#include "bindings/testing/bind_testing.h"
#include "engine/drafting/answer_store.h"
#include "engine/drafting/speculator.h"
#include "engine/drafting/suffix_automaton.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

void bind_speculator(py::module_ &m) {
    using Wishes = std::vector<std::pair<uint64_t, std::vector<int32_t>>>;
    py::class_<StepCost>(m, "StepCost")
        .def(py::init<>())
        .def("took", &StepCost::took, py::arg("n_rows"), py::arg("seconds"), py::arg("all_have_logits") = true)
        .def("seconds", &StepCost::seconds, py::arg("n_rows"));
    py::class_<Speculator>(m, "Speculator")
        .def(py::init([](std::vector<std::shared_ptr<Drafter>> drafters, int draft_max, int draft_min) {
                 return std::make_unique<Speculator>(std::move(drafters), SpeculationConfig{draft_max, draft_min});
             }),
             py::arg("drafters"), py::kw_only(), py::arg("draft_max") = SpeculationConfig{}.draft_max,
             py::arg("draft_min") = SpeculationConfig{}.draft_min)
        .def(
            "propose",
            [](Speculator &self, const Wishes &texts, int n_rows, const std::vector<std::vector<int32_t>> &forced,
               const std::vector<std::vector<uint32_t>> &masks, int64_t n_prompt) {
                std::vector<Speculator::Wish> wishes;
                for (const auto &[id, tokens] : texts) {
                    Speculator::Wish wish;
                    wish.sequence = SequenceId{id};
                    wish.tokens = tokens;
                    wish.n_prompt = n_prompt;
                    wish.max_tokens = static_cast<int64_t>(tokens.size()) + 1000;
                    wish.most = wish.room = self.most();
                    wish.drafters = self.set("auto");
                    const size_t i = wishes.size();
                    if (i < forced.size()) wish.forced = forced[i];
                    if (i < masks.size())
                        wish.mask =
                            std::make_shared<const TokenMask>(masks[i], static_cast<int32_t>(32 * masks[i].size()));
                    wishes.push_back(wish);
                }
                self.propose(wishes, static_cast<int>(wishes.size()), n_rows);
                std::vector<std::vector<int32_t>> proposals;
                for (const Speculator::Wish &wish : wishes) proposals.push_back(wish.proposal);
                for (const Speculator::Wish &wish : wishes)
                    if (!wish.proposal.empty()) self.planned(wish.sequence, static_cast<int>(wish.proposal.size()));
                return proposals;
            },
            py::arg("texts"), py::arg("n_rows"), py::arg("forced") = std::vector<std::vector<int32_t>>(),
            py::arg("masks") = std::vector<std::vector<uint32_t>>(), py::arg("n_prompt") = 0)
        .def(
            "forget",
            [](Speculator &self, uint64_t id, const std::vector<int32_t> &answer) {
                self.forget(SequenceId{id}, answer);
            },
            py::arg("sequence_id"), py::arg("answer"))
        .def(
            "judge", [](Speculator &self, uint64_t id, bool is_right) { self.judge(SequenceId{id}, is_right); },
            py::arg("sequence_id"), py::arg("is_right"))
        .def("took", &Speculator::took, py::arg("n_rows"), py::arg("seconds"), py::arg("all_have_logits") = true);
}

} // namespace

void bind_drafting(py::module_ &m) {
    bind_speculator(m);
    py::class_<SuffixAutomaton>(m, "SuffixAutomaton")
        .def(py::init<>())
        .def("append", &SuffixAutomaton::append, py::arg("token"))
        .def_property_readonly(
            "match", [](const SuffixAutomaton &self) { return std::pair(self.match().length, self.match().next); })
        .def_property_readonly("n_states", &SuffixAutomaton::n_states);
    py::class_<AnswerStore::Cursor>(m, "AnswerCursor").def(py::init<>());
    py::class_<AnswerStore>(m, "AnswerStore")
        .def(py::init<size_t>(), py::arg("most_tokens"))
        .def(
            "add",
            [](AnswerStore &self, const std::string &salt, const std::vector<int32_t> &answer) {
                self.add(salt, answer);
            },
            py::arg("salt"), py::arg("answer"))
        .def(
            "find",
            [](AnswerStore &self, const std::string &salt, const std::vector<int32_t> &tokens,
               AnswerStore::Cursor &cursor) {
                const AnswerStore::Found found = self.find(salt, tokens, cursor);
                return std::pair(found.length, std::vector<int32_t>(found.next.begin(), found.next.end()));
            },
            py::arg("salt"), py::arg("tokens"), py::arg("cursor"))
        .def_property_readonly("n_tokens", &AnswerStore::n_tokens);
}

} // namespace quire::bindings
