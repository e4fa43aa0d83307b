#include "engine/fake_executor.h"

#include <chrono>
#include <limits>
#include <thread>

#include "core/error.h"

namespace quire {
namespace {

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

void require(bool holds, const char *what) {
    if (!holds) throw InternalError("fake_executor", cat(what, " but that is not so"));
}

} // namespace

FakeExecutor::FakeExecutor(const FakeExecutorOptions &options)
    : options_(options), layout_({CacheSpec{CacheRows{1, 1, 1}, {}}}, DType::f32, options.block_tokens),
      slots_(static_cast<size_t>(options.n_blocks) * static_cast<size_t>(options.block_tokens)) {}

FakeExecutor::Slot &FakeExecutor::slot(int64_t index) {
    require(index >= options_.block_tokens && index < static_cast<int64_t>(slots_.size()),
            "slots must be in the store");
    return slots_[static_cast<size_t>(index)];
}

void FakeExecutor::copy_block(int, int from, int to) {
    for (int64_t i = 0; i < options_.block_tokens; ++i)
        slot(int64_t{to} * options_.block_tokens + i) = slot(int64_t{from} * options_.block_tokens + i);
}

float *FakeExecutor::run(const StepBatch &batch) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.step_s));
    const auto n_rows = static_cast<int>(batch.tokens.size());
    require(n_rows <= options_.max_rows, "a step must have at most max_rows rows");
    require(static_cast<int>(batch.logit_rows.size()) <= options_.max_logit_rows, "logit rows must be within limits");
    require(static_cast<int>(batch.n_kv.size()) <= options_.max_sequences, "sequences must be within limits");
    require(batch.row_begin.size() == batch.n_kv.size() + 1 && batch.row_begin.back() == n_rows, "rows must be all");
    write(batch);
    logits_.clear();
    next_logit_row_ = 0;
    int64_t n_kv = 0;
    for (size_t sequence = 0; sequence < batch.n_kv.size(); ++sequence) {
        n_kv += batch.n_kv[sequence];
        run_sequence(batch, sequence);
    }
    require(options_.max_kv_tokens == 0 || n_kv <= options_.max_kv_tokens, "cached tokens must be within limits");
    require(next_logit_row_ == batch.logit_rows.size(), "logit rows must be ascending");
    return logits_.data();
}

void FakeExecutor::write(const StepBatch &batch) {
    for (size_t row = 0; row < batch.tokens.size(); ++row) {
        if (options_.fail_on && batch.tokens[row] == *options_.fail_on)
            throw CapacityError("fake_executor", cat("a step must not have token ", *options_.fail_on, " but has it"));
        slot(batch.groups[0].slots[row]) = {batch.tokens[row], batch.positions[row]};
    }
}

void FakeExecutor::run_sequence(const StepBatch &batch, size_t sequence) {
    const int32_t n_kv = batch.n_kv[sequence];
    int32_t row = batch.row_begin[sequence + 1] - n_kv; // of position 0, were it in the batch
    uint64_t hash = 0;
    bool is_nan = false;
    for (int32_t position = 0; position < n_kv; ++position, ++row) {
        const auto entry =
            static_cast<size_t>(batch.groups[0].table_begin[sequence] + position / options_.block_tokens);
        require(entry < batch.groups[0].tables.size(), "a table must cover its tokens");
        const Slot &at =
            slot(int64_t{batch.groups[0].tables[entry]} * options_.block_tokens + position % options_.block_tokens);
        require(at.position == position, "a table must lead to its sequence's positions");
        hash = mix(hash * 31 + static_cast<uint64_t>(at.token) + 1);
        is_nan |= options_.nan_after == at.token;
        const bool wanted = next_logit_row_ < batch.logit_rows.size() && batch.logit_rows[next_logit_row_] == row;
        if (wanted && row >= batch.row_begin[sequence]) add_row(hash, is_nan);
    }
}

void FakeExecutor::add_row(uint64_t hash, bool is_nan) {
    ++next_logit_row_;
    for (int v = 0; v < options_.n_vocab; ++v)
        logits_.push_back(is_nan ? std::numeric_limits<float>::quiet_NaN()
                                 : static_cast<float>(mix(hash + static_cast<uint64_t>(v)) >> 40) / 2097152.0f);
}

} // namespace quire
