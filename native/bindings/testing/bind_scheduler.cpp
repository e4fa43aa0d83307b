#include <pybind11/stl.h>

#include "bindings/testing/bind_testing.h"
#include "engine/scheduling/batch.h"
#include "engine/scheduling/scheduler.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

uint64_t number(SequenceId id) { return static_cast<uint64_t>(id); }

std::vector<uint64_t> numbers(const std::vector<SequenceId> &ids) {
    std::vector<uint64_t> result;
    for (SequenceId id : ids) result.push_back(number(id));
    return result;
}

// A copy of a sequence's state.
struct SequenceState {
    uint64_t id;
    std::vector<int32_t> tokens, drafted;
    int64_t n_prompt, n_computed, n_cached;
    int n_preemptions, n_yields;
    bool has_work;
    std::string queue;
    std::vector<std::vector<int32_t>> tables;
    std::optional<int32_t> state;
};

SequenceState state_of(const Sequence &s) {
    static const char *const queues[] = {"waiting", "running", "following"};
    SequenceState state{number(s.id), s.tokens,        s.drafted,  s.n_prompt,   s.n_computed,
                        s.n_cached,   s.n_preemptions, s.n_yields, s.has_work(), queues[static_cast<int>(s.queue)],
                        {},           std::nullopt};
    for (const BlockTable &table : s.cache.tables()) {
        state.tables.emplace_back();
        for (BlockId block : table.blocks()) state.tables.back().push_back(index(block));
    }
    if (s.cache.state()) state.state = index(*s.cache.state());
    return state;
}

void bind_plan(py::module_ &m) {
    py::class_<PlanItem>(m, "PlanItem")
        .def_property_readonly("sequence_id", [](const PlanItem &self) { return number(self.id); })
        .def_readonly("first", &PlanItem::first)
        .def_readonly("n_tokens", &PlanItem::n_tokens)
        .def_readonly("n_logit_rows", &PlanItem::n_logit_rows)
        .def_readonly("n_drafted", &PlanItem::n_drafted)
        .def_readonly("n_encoded", &PlanItem::n_encoded);
    py::class_<Plan>(m, "Plan")
        .def_readonly("items", &Plan::items)
        .def_readonly("edits", &Plan::edits)
        .def_property_readonly("admitted", [](const Plan &self) { return numbers(self.admitted); })
        .def_property_readonly("preempted", [](const Plan &self) { return numbers(self.preempted); })
        .def_property_readonly("yielded", [](const Plan &self) { return numbers(self.yielded); })
        .def_readonly("n_tokens", &Plan::n_tokens)
        .def_readonly("n_logit_rows", &Plan::n_logit_rows);
    py::class_<SequenceState>(m, "SequenceState")
        .def_readonly("id", &SequenceState::id)
        .def_readonly("tokens", &SequenceState::tokens)
        .def_readonly("drafted", &SequenceState::drafted)
        .def_readonly("n_prompt", &SequenceState::n_prompt)
        .def_readonly("n_computed", &SequenceState::n_computed)
        .def_readonly("n_cached", &SequenceState::n_cached)
        .def_readonly("n_preemptions", &SequenceState::n_preemptions)
        .def_readonly("n_yields", &SequenceState::n_yields)
        .def_readonly("has_work", &SequenceState::has_work)
        .def_readonly("queue", &SequenceState::queue)
        .def_readonly("tables", &SequenceState::tables)
        .def_readonly("state", &SequenceState::state);
}

void bind_scheduler_config(py::module_ &m) {
    const SchedulerConfig defaults;
    py::class_<SchedulerConfig>(m, "SchedulerConfig")
        .def(
            py::init([](const std::string &policy, DynamicWeights weights, int max_step_tokens, int max_step_logit_rows,
                        std::optional<int64_t> max_step_kv_tokens, int max_running, std::optional<int> kept_back_blocks,
                        int max_preemptions, int turn_tokens, int snapshot_tokens, bool undivided_prompts) {
                using Prompts = SchedulerConfig::Prompts;
                return SchedulerConfig{scheduling_policy(policy),
                                       weights,
                                       max_step_tokens,
                                       max_step_logit_rows,
                                       max_step_kv_tokens,
                                       max_running,
                                       kept_back_blocks,
                                       max_preemptions,
                                       turn_tokens,
                                       snapshot_tokens,
                                       undivided_prompts ? Prompts::undivided : Prompts::divided};
            }),
            py::kw_only(), py::arg("policy") = name(defaults.policy), py::arg("weights") = defaults.weights,
            py::arg("max_step_tokens") = defaults.max_step_tokens,
            py::arg("max_step_logit_rows") = defaults.max_step_logit_rows, py::arg("max_step_kv_tokens") = py::none(),
            py::arg("max_running") = defaults.max_running, py::arg("kept_back_blocks") = py::none(),
            py::arg("max_preemptions") = defaults.max_preemptions, py::arg("turn_tokens") = defaults.turn_tokens,
            py::arg("snapshot_tokens") = defaults.snapshot_tokens, py::arg("undivided_prompts") = false)
        .def_property_readonly("policy", [](const SchedulerConfig &self) { return name(self.policy); })
        .def_readonly("weights", &SchedulerConfig::weights)
        .def_readonly("max_step_tokens", &SchedulerConfig::max_step_tokens)
        .def_readonly("max_step_logit_rows", &SchedulerConfig::max_step_logit_rows)
        .def_readonly("max_step_kv_tokens", &SchedulerConfig::max_step_kv_tokens)
        .def_readonly("max_running", &SchedulerConfig::max_running)
        .def_readonly("kept_back_blocks", &SchedulerConfig::kept_back_blocks)
        .def_readonly("snapshot_tokens", &SchedulerConfig::snapshot_tokens)
        .def_readonly("max_preemptions", &SchedulerConfig::max_preemptions)
        .def_readonly("turn_tokens", &SchedulerConfig::turn_tokens);
    py::class_<SchedulerStats>(m, "SchedulerStats")
        .def_readonly("n_waiting", &SchedulerStats::n_waiting)
        .def_readonly("n_running", &SchedulerStats::n_running)
        .def_readonly("n_following", &SchedulerStats::n_following)
        .def_readonly("n_preemptions", &SchedulerStats::n_preemptions)
        .def_readonly("n_yields", &SchedulerStats::n_yields)
        .def_readonly("n_paused", &SchedulerStats::n_paused)
        .def_readonly("n_prefix_hit_tokens", &SchedulerStats::n_prefix_hit_tokens)
        .def_readonly("n_recovered_tokens", &SchedulerStats::n_recovered_tokens)
        .def_readonly("n_computed_tokens", &SchedulerStats::n_computed_tokens)
        .def_readonly("n_recomputed_tokens", &SchedulerStats::n_recomputed_tokens)
        .def_readonly("n_lost_hit_tokens", &SchedulerStats::n_lost_hit_tokens)
        .def_readonly("n_drafted_tokens", &SchedulerStats::n_drafted_tokens)
        .def_readonly("n_accepted_tokens", &SchedulerStats::n_accepted_tokens);
}

py::dict arrays_of(const StepBatch &batch) {
    py::dict arrays;
    arrays["tokens"] = batch.tokens;
    arrays["positions"] = batch.positions;
    arrays["token_types"] = batch.token_types;
    arrays["logit_rows"] = batch.logit_rows;
    arrays["row_begin"] = batch.row_begin;
    arrays["n_kv"] = batch.n_kv;
    arrays["states"] = batch.states;
    py::list groups;
    for (const GroupBatch &group : batch.groups) {
        py::dict entry;
        entry["slots"] = group.slots;
        entry["table_begin"] = group.table_begin;
        entry["tables"] = group.tables;
        entry["n_source"] = group.n_source;
        entry["last_visible"] = group.last_visible;
        groups.append(entry);
    }
    arrays["groups"] = groups;
    return arrays;
}

} // namespace

void bind_scheduler(py::module_ &m) {
    bind_scheduler_config(m);
    bind_plan(m);
    py::class_<Scheduler>(m, "Scheduler")
        .def(py::init<SchedulerConfig, std::shared_ptr<CachePool>>(), py::arg("config"), py::arg("pool").none(false))
        .def(
            "submit",
            [](Scheduler &self, std::vector<int32_t> tokens, int64_t max_tokens, double now_s, int n_choices,
               int priority, std::string key, std::string salt, bool every_logit_row,
               std::vector<int64_t> snapshot_positions, std::vector<int32_t> source,
               const std::vector<std::tuple<int64_t, int64_t, bool>> &media) {
                SequenceSpec spec{std::move(tokens),
                                  max_tokens,
                                  {{}, {}, std::move(salt)},
                                  priority,
                                  std::move(key),
                                  every_logit_row ? LogitRows::every : LogitRows::last,
                                  std::move(snapshot_positions),
                                  no_second_text,
                                  std::move(source)};
                auto spans = std::make_shared<PromptMedia>();
                for (const auto &[begin, n, is_bidirectional] : media)
                    spans->spans.push_back({begin, n, "image", {}, is_bidirectional});
                if (!media.empty()) spec.media = std::move(spans);
                return numbers(self.submit(std::move(spec), n_choices, now_s));
            },
            py::arg("token_ids"), py::kw_only(), py::arg("max_tokens"), py::arg("now_s"), py::arg("n_choices") = 1,
            py::arg("priority") = 0, py::arg("key") = "", py::arg("salt") = py::bytes(),
            py::arg("every_logit_row") = false, py::arg("snapshot_positions") = std::vector<int64_t>(),
            py::arg("source") = std::vector<int32_t>(),
            py::arg("media") = std::vector<std::tuple<int64_t, int64_t, bool>>())
        .def("plan", &Scheduler::plan, py::arg("now_s"))
        .def("plan_within", &Scheduler::plan_within, py::arg("now_s"), py::arg("step_tokens"))
        .def("commit", &Scheduler::commit, py::arg("plan"))
        .def(
            "append", [](Scheduler &self, uint64_t id, int32_t token) { self.append(SequenceId{id}, token); },
            py::arg("sequence_id"), py::arg("token"))
        .def(
            "draft_limit",
            [](const Scheduler &self, uint64_t id) { return self.draft_limit(self.sequence(SequenceId{id})); },
            py::arg("sequence_id"))
        .def(
            "draft",
            [](Scheduler &self, uint64_t id, const std::vector<int32_t> &tokens) {
                self.draft(SequenceId{id}, tokens);
            },
            py::arg("sequence_id"), py::arg("tokens"))
        .def(
            "pause", [](Scheduler &self, uint64_t id) { self.pause(SequenceId{id}); }, py::arg("sequence_id"))
        .def(
            "resume", [](Scheduler &self, uint64_t id) { self.resume(SequenceId{id}); }, py::arg("sequence_id"))
        .def(
            "remove", [](Scheduler &self, uint64_t id) { self.remove(SequenceId{id}); }, py::arg("sequence_id"))
        .def(
            "sequence", [](const Scheduler &self, uint64_t id) { return state_of(self.sequence(SequenceId{id})); },
            py::arg("sequence_id"))
        .def("__contains__", [](const Scheduler &self, uint64_t id) { return self.contains(SequenceId{id}); })
        .def(
            "batch",
            [](const Scheduler &self, const Plan &plan) {
                self.require_current(plan);
                StepBatch batch;
                fill_batch(batch, plan, self.pool());
                return arrays_of(batch);
            },
            py::arg("plan"))
        .def(
            "source_batch",
            [](const Scheduler &self, const Plan &plan) {
                self.require_current(plan);
                StepBatch batch;
                fill_source_batch(batch, plan, self.pool());
                return arrays_of(batch);
            },
            py::arg("plan"))
        .def_property_readonly("stats", &Scheduler::stats)
        .def("check", &Scheduler::check);
}

} // namespace quire::bindings
