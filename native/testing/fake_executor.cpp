#include "testing/fake_executor.h"

#include <chrono>
#include <cstring>
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

void require(bool holds, const char *problem) {
    if (!holds) throw InternalError("fake_executor", problem);
}

std::vector<CacheSpec> layers_of(const FakeExecutorOptions &options) {
    std::vector<CacheSpec> layers;
    for (const CacheLifetime &l : options.layers)
        layers.push_back({CacheRows{1, 1, 1, l.window, l.chunk, false, l.of_source, l.bidirectional_media}, {}});
    if (options.n_state > 0) layers.push_back({std::nullopt, {CacheState{"seen", options.n_state}}});
    return layers;
}

} // namespace

FakeExecutor::FakeExecutor(const FakeExecutorOptions &options)
    : options_(options), layout_(layers_of(options), DType::f32, options.block_tokens) {
    for (size_t i = 0; i < layout_.groups().size(); ++i)
        slots_.emplace_back(static_cast<size_t>(options.n_blocks) * static_cast<size_t>(options.block_tokens));
    if (options.n_state > 0) states_.resize(static_cast<size_t>(options.n_states));
}

size_t FakeExecutor::cache_budget_bytes() const {
    size_t all = static_cast<size_t>(options_.n_blocks - 1) * layout_.block_bytes();
    if (!states_.empty()) all += (states_.size() - 1) * layout_.state_bytes();
    return options_.budget_bytes.value_or(all);
}

FakeExecutor::Slot &FakeExecutor::slot(size_t group, int64_t index) {
    require(index >= options_.block_tokens && index < static_cast<int64_t>(slots_[group].size()),
            "a slot is outside the store");
    return slots_[group][static_cast<size_t>(index)];
}

FakeExecutor::Seen &FakeExecutor::state(int slot) {
    require(slot > 0 && static_cast<size_t>(slot) < states_.size(), "a state is outside the store");
    return states_[static_cast<size_t>(slot)];
}

void FakeExecutor::count_copy() {
    if (options_.fail_copy == n_copies_++) throw CapacityError("fake_executor", "this copy fails, as configured");
}

void FakeExecutor::copy_block(int group, int from, int to) {
    count_copy();
    const auto g = static_cast<size_t>(group);
    for (int64_t i = 0; i < options_.block_tokens; ++i)
        slot(g, int64_t{to} * options_.block_tokens + i) = slot(g, int64_t{from} * options_.block_tokens + i);
}

void FakeExecutor::copy_state(int from, int to) {
    count_copy();
    state(to) = from == 0 ? Seen{} : state(from);
}

void FakeExecutor::discard_block(int group, int block) {
    for (int64_t i = 0; i < options_.block_tokens; ++i)
        slot(static_cast<size_t>(group), int64_t{block} * options_.block_tokens + i) = {};
}

void FakeExecutor::discard_state(int slot) { state(slot) = {0, -1, false}; }

void FakeExecutor::read_block(int group, int block, uint8_t *to) {
    const auto g = static_cast<size_t>(group);
    const size_t bytes = static_cast<size_t>(options_.block_tokens) * sizeof(Slot);
    std::memset(to, 0, layout_.groups()[g].block_bytes);
    std::memcpy(to, &slot(g, int64_t{block} * options_.block_tokens), bytes);
}

void FakeExecutor::write_block(int group, int block, const uint8_t *from) {
    const size_t bytes = static_cast<size_t>(options_.block_tokens) * sizeof(Slot);
    std::memcpy(&slot(static_cast<size_t>(group), int64_t{block} * options_.block_tokens), from, bytes);
}

void FakeExecutor::read_state(int slot, uint8_t *to) {
    const Seen &seen = state(slot);
    const int64_t n_tokens = seen.n_tokens * 2 + seen.is_nan;
    std::memset(to, 0, layout_.state_bytes());
    require(layout_.state_bytes() >= sizeof seen.hash + sizeof n_tokens, "a state is too small to be read");
    std::memcpy(to, &seen.hash, sizeof seen.hash);
    std::memcpy(to + sizeof seen.hash, &n_tokens, sizeof n_tokens);
}

void FakeExecutor::write_state(int slot, const uint8_t *from) {
    Seen &seen = state(slot);
    int64_t n_tokens;
    std::memcpy(&seen.hash, from, sizeof seen.hash);
    std::memcpy(&n_tokens, from + sizeof seen.hash, sizeof n_tokens);
    seen.n_tokens = n_tokens / 2;
    seen.is_nan = n_tokens % 2 != 0;
}

void FakeExecutor::check_limits(const StepBatch &batch) const {
    const auto n_rows = static_cast<int>(batch.tokens.size());
    require(n_rows <= options_.max_rows, "a step has more than max_rows rows");
    require(static_cast<int>(batch.logit_rows.size()) <= options_.max_logit_rows,
            "a step has more than max_logit_rows rows of logits");
    require(static_cast<int>(batch.n_kv.size()) <= options_.max_sequences,
            "a step has more than max_sequences sequences");
    require(batch.row_begin.size() == batch.n_kv.size() + 1 && batch.row_begin.back() == n_rows,
            "the rows of the sequences are not those of the step");
    require(batch.features.size() == batch.tokens.size() * static_cast<size_t>(n_features_read()),
            "the features do not match the tokens");
    require(batch.groups.size() == slots_.size(), "the groups are not those of the layout");
    require(batch.states.size() == (states_.empty() ? 0 : batch.n_kv.size()), "the states do not match the sequences");
    int64_t n_kv = 0;
    for (int32_t n : batch.n_kv) n_kv += n;
    require(options_.max_kv_tokens == 0 || n_kv <= options_.max_kv_tokens,
            "a step has more than max_kv_tokens cached tokens");
}

float *FakeExecutor::run(const StepBatch &batch) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.step_s));
    check_limits(batch);
    write(batch);
    logits_.clear();
    features_.clear();
    next_logit_row_ = 0;
    for (size_t sequence = 0; sequence < batch.n_kv.size(); ++sequence) run_sequence(batch, sequence);
    require(next_logit_row_ == batch.logit_rows.size(), "logit rows are not ascending");
    return logits_.data();
}

void FakeExecutor::write(const StepBatch &batch) {
    for (size_t row = 0; row < batch.tokens.size(); ++row) {
        if (options_.fail_on && batch.tokens[row] == *options_.fail_on)
            throw CapacityError("fake_executor", cat("a step with token ", *options_.fail_on, " fails, as configured"));
        for (size_t g = 0; g < slots_.size(); ++g)
            if (!layout_.groups()[g].lifetime.of_source)
                slot(g, batch.groups[g].slots[row]) = {token_of(batch, row), batch.positions[row]};
    }
}

int32_t FakeExecutor::token_of(const StepBatch &batch, size_t row) const {
    const float *features = batch.features.data() + row * static_cast<size_t>(n_features_read());
    if (options_.media_width == 0 || features[0] == 1) return batch.tokens[row];
    return options_.n_vocab + static_cast<int32_t>(features[1]);
}

void FakeExecutor::encode(const StepBatch &batch) {
    const auto g = static_cast<size_t>(layout_.source_group().value());
    require(batch.logit_rows.empty() && batch.groups[g].slots.size() == batch.tokens.size(),
            "a source text has logits or tokens without a slot");
    for (size_t row = 0; row < batch.tokens.size(); ++row) {
        if (options_.fail_on && batch.tokens[row] == *options_.fail_on)
            throw CapacityError("fake_executor",
                                cat("a source text with token ", *options_.fail_on, " fails, as configured"));
        slot(g, batch.groups[g].slots[row]) = {batch.tokens[row], batch.positions[row]};
    }
}

void FakeExecutor::run_sequence(const StepBatch &batch, size_t sequence) {
    Seen *state = batch.states.empty() ? nullptr : &this->state(batch.states[sequence]);
    for (int32_t row = batch.row_begin[sequence]; row < batch.row_begin[sequence + 1]; ++row) {
        const auto i = static_cast<size_t>(row);
        if (state) {
            require(state->n_tokens == batch.positions[i], "a state does not contain exactly the tokens before");
            see(*state, batch.tokens[i]);
        }
        const bool wanted = next_logit_row_ < batch.logit_rows.size() && batch.logit_rows[next_logit_row_] == row;
        if (!wanted && n_features() == 0) continue;
        const Seen seen = row_of(batch, sequence, row, state);
        for (int part = 0; part < n_features(); ++part)
            features_.push_back(static_cast<float>((seen.hash >> (16 * part)) & 0xffff));
        if (wanted) add_logits(seen);
    }
}

void FakeExecutor::see(Seen &seen, int32_t token) const {
    seen.hash = mix(seen.hash * 31 + static_cast<uint64_t>(token) + 1);
    seen.is_nan |= options_.nan_after == token;
    ++seen.n_tokens;
}

FakeExecutor::Seen FakeExecutor::seen_by(const StepBatch &batch, size_t group, size_t sequence, int32_t row) {
    const GroupBatch &rows = batch.groups[group];
    const int32_t position = batch.positions[static_cast<size_t>(row)];
    const int32_t last = rows.last_seen(static_cast<int>(sequence), row, position);
    Seen seen;
    for (auto i = static_cast<int32_t>(layout_.groups()[group].lifetime.first_seen(position)); i <= last; ++i) {
        const auto entry = static_cast<size_t>(rows.table_begin[sequence] + i / options_.block_tokens);
        require(entry < rows.tables.size(), "a table has fewer blocks than its tokens need");
        const Slot &at = slot(group, int64_t{rows.tables[entry]} * options_.block_tokens + i % options_.block_tokens);
        require(at.position == i, "a table leads to other positions than its sequence's");
        see(seen, at.token);
    }
    return seen;
}

FakeExecutor::Seen FakeExecutor::row_of(const StepBatch &batch, size_t sequence, int32_t row, const Seen *state) {
    std::vector<Seen> layers;
    for (size_t g = 0; g < slots_.size(); ++g) layers.push_back(seen_by(batch, g, sequence, row));
    if (state) layers.push_back(*state);
    if (options_.undivided_prompts) {
        layers.push_back({});
        for (int32_t i = batch.row_begin[sequence]; i < batch.row_begin[sequence + 1]; ++i)
            see(layers.back(), batch.tokens[static_cast<size_t>(i)]);
    }
    Seen all = layers.size() == 1 ? layers[0] : Seen{};
    if (layers.size() > 1)
        for (const Seen &seen : layers)
            all = {mix(all.hash * 31 + seen.hash + 1), all.n_tokens, all.is_nan || seen.is_nan};
    if (options_.reads_features) {
        const auto i = static_cast<size_t>(row), n = static_cast<size_t>(n_feature_numbers);
        Seen before;
        for (size_t part = 0; part < n; ++part)
            before.hash |= static_cast<uint64_t>(batch.features[i * n + part]) << (16 * part);
        see(before, batch.tokens[i]);
        return before;
    }
    return all;
}

void FakeExecutor::add_logits(const Seen &all) {
    ++next_logit_row_;
    for (int v = 0; v < options_.n_vocab; ++v)
        logits_.push_back(all.is_nan ? std::numeric_limits<float>::quiet_NaN()
                                     : static_cast<float>(mix(all.hash + static_cast<uint64_t>(v)) >> 40) / 2097152.0f);
}

} // namespace quire
