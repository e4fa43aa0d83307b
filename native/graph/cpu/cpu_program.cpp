#include "graph/cpu/cpu_program.h"

#include <algorithm>

#include "core/error.h"
#include "core/poison.h"
#include "graph/cpu/memory_plan.h"

namespace quire {

namespace {

// Blocks of a step's own rows, one after the other.
void lay_out(GroupBatch &own, const StepBatch &batch) {
    for (auto *array : {&own.slots, &own.table_begin, &own.tables}) array->clear();
    int32_t block = 1; // block 0 tells that there is none
    for (size_t s = 0; s + 1 < batch.row_begin.size(); ++s) {
        const int32_t n = batch.row_begin[s + 1] - batch.row_begin[s];
        own.table_begin.push_back(static_cast<int32_t>(own.tables.size()));
        for (int32_t i = 0; i < n; ++i) own.slots.push_back(block * kv_block_tokens + i);
        for (int32_t i = 0; i < n; i += kv_block_tokens) own.tables.push_back(block++);
    }
}

} // namespace

int rows_together(int64_t row_floats) {
    constexpr int64_t floats = 8192;
    return static_cast<int>(std::max<int64_t>(1, floats / std::max<int64_t>(1, row_floats)));
}

CpuRun::CpuRun(const StepBatch &from, ThreadTeam &threads, const KernelSet &set, std::vector<AttentionPlan> &plans,
               GroupBatch &own_rows)
    : batch(from), groups(plans.size()), team(threads), kernels(set) {
    if (!from.adapters.empty()) {
        token_adapters_ = adapter_rows(from, Lead::tokens);
        logit_adapters_ = adapter_rows(from, Lead::rows);
    }
    if (groups.size() > from.groups.size()) lay_out(own_rows, from);
    for (size_t g = 0; g < groups.size(); ++g) {
        AttentionBatch &attention = groups[g];
        attention.n_rows = static_cast<int>(from.tokens.size());
        attention.n_sequences = n_sequences();
        attention.row_begin = from.row_begin.data();
        const GroupBatch &group = g < from.groups.size() ? from.groups[g] : own_rows;
        attention.n_kv = group.n_kv_of(from.n_kv).data();
        attention.table_begin = group.table_begin.data();
        attention.tables = group.tables.data();
        attention.slots = group.slots.data();
        attention.last_visible = group.last_visible.empty() ? nullptr : group.last_visible.data();
        if (plans[g].empty()) continue;
        plans[g].begin(kernels, attention, team.n_workers());
        attention.plan = &plans[g];
    }
}

void CpuProgram::add_attention(int group, const AttentionShape &shape) {
    const auto at = static_cast<size_t>(group);
    if (plans_.size() <= at) plans_.resize(at + 1);
    plans_[at].add(shape);
}

CpuValue *CpuProgram::value(Lead lead, int64_t row_bytes, int64_t rows_per_lead) {
    return &values_.emplace_back(CpuValue{lead, row_bytes, rows_per_lead, false});
}

CpuValue *CpuProgram::block_value(int64_t block_bytes) {
    return &values_.emplace_back(CpuValue{Lead::tokens, block_bytes, 1, true});
}

void CpuProgram::add(std::unique_ptr<CpuNode> node, const std::vector<CpuValue *> &values) {
    const int index = static_cast<int>(nodes_.size());
    for (CpuValue *value : values) {
        if (value->first < 0) value->first = index;
        value->last = std::max(value->last, index);
    }
    nodes_.push_back(std::move(node));
}

void CpuProgram::show_hidden(CpuValue *value, std::unique_ptr<CpuNode> node, CpuValue *from) {
    hidden_ = value;
    hidden_node_ = std::move(node);
    hidden_from_ = from;
}

void CpuProgram::finish(CpuValue *output, CpuProgramLimits limits) {
    output_ = output;
    const int end = static_cast<int>(nodes_.size());
    std::vector<CpuValue *> last = taps_; // read by the caller, or by the last node
    last.insert(last.end(), {output, maxima_, hidden_, hidden_from_});
    for (CpuValue *read : last) {
        if (read == nullptr) continue;
        if (read->first < 0) read->first = end;
        read->last = end;
    }
    std::vector<Lifetime> lifetimes;
    for (const CpuValue &value : values_) {
        int rows = value.lead == Lead::tokens ? limits.max_rows : limits.max_logit_rows;
        if (value.is_blocks)
            rows = 1 + limits.max_rows / kv_block_tokens + std::min(limits.max_rows, limits.max_sequences);
        lifetimes.push_back({static_cast<size_t>(value.row_bytes * value.rows_per_lead) * static_cast<size_t>(rows),
                             value.first, value.last});
    }
    MemoryPlan plan = plan_memory(lifetimes);
    size_bytes_ = plan.size_bytes;
    offsets_ = std::move(plan.offsets);
}

void CpuProgram::place(uint8_t *memory) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i].data = memory + offsets_[i];
    for (const auto &node : nodes_) node->place();
    if (hidden_node_) hidden_node_->place();
}

float *CpuProgram::run(const StepBatch &batch, ThreadTeam &team) {
    const CpuRun run(batch, team, kernels_, plans_, own_rows_);
    if (poisons()) {
        for (const CpuValue &value : values_)
            if (!value.is_blocks)
                poison(value.data, static_cast<size_t>(value.row_bytes * value.rows_per_lead * run.n(value.lead)));
    }
    for (const auto &node : nodes_) node->run(run);
    if (hidden_node_ && batch.hidden == HiddenStates::wanted) hidden_node_->run(run);
    return output_ == nullptr ? nullptr : output_->floats();
}

} // namespace quire
