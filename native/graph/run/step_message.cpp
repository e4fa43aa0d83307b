#include "graph/run/step_message.h"

#include <cstring>

#include "core/error.h"

namespace quire {
namespace {

class Writer {
  public:
    template <class T> void numbers(std::span<const T> values) {
        number(values.size());
        bytes_.insert(bytes_.end(), reinterpret_cast<const uint8_t *>(values.data()),
                      reinterpret_cast<const uint8_t *>(values.data() + values.size()));
    }
    void numbers(const std::vector<int32_t> &values) { numbers(std::span<const int32_t>(values)); }
    void number(uint64_t value) {
        const auto *begin = reinterpret_cast<const uint8_t *>(&value);
        bytes_.insert(bytes_.end(), begin, begin + sizeof(value));
    }
    std::vector<uint8_t> take() { return std::move(bytes_); }

  private:
    std::vector<uint8_t> bytes_;
};

class Reader {
  public:
    explicit Reader(std::span<const uint8_t> bytes) : left_(bytes) {}
    uint64_t number() {
        uint64_t value = 0;
        std::memcpy(&value, take(sizeof(value)), sizeof(value));
        return value;
    }
    template <class T> void numbers(std::vector<T> &values) {
        values.resize(number());
        if (!values.empty()) std::memcpy(values.data(), take(values.size() * sizeof(T)), values.size() * sizeof(T));
    }

  private:
    const uint8_t *take(size_t n) {
        if (n > left_.size()) throw InternalError("parallel", "a step's message is cut short");
        const uint8_t *begin = left_.data();
        left_ = left_.subspan(n);
        return begin;
    }
    std::span<const uint8_t> left_;
};

// All arrays of numbers of a batch, in the same order for both directions.
template <class Batch, class Use> void for_arrays(Batch &batch, const Use &use) {
    for (auto *each : {&batch.tokens, &batch.positions, &batch.token_types, &batch.axes, &batch.logit_rows,
                       &batch.likeliest, &batch.row_begin, &batch.n_kv, &batch.states})
        use(*each);
    for (auto &group : batch.groups)
        for (auto *each : {&group.slots, &group.table_begin, &group.tables, &group.n_source, &group.last_visible})
            use(*each);
}

} // namespace

std::vector<uint8_t> to_bytes(std::span<const CacheCommand> edits, const StepBatch *batch, bool stops) {
    Writer to;
    to.number(stops ? 1 : 0);
    to.numbers(edits);
    to.number(batch != nullptr ? 1 : 0);
    if (batch == nullptr) return to.take();
    to.number(batch->groups.size());
    to.number(batch->hidden == HiddenStates::wanted ? 1 : 0);
    for_arrays(*batch, [&](const std::vector<int32_t> &values) { to.numbers(values); });
    to.numbers(batch->features);
    return to.take();
}

StepMessage message_of(std::span<const uint8_t> bytes) {
    Reader from(bytes);
    StepMessage message;
    message.stops = from.number() != 0;
    from.numbers(message.edits);
    if (from.number() == 0) return message;
    StepBatch &batch = message.batch.emplace();
    batch.groups.resize(from.number());
    batch.hidden = from.number() != 0 ? HiddenStates::wanted : HiddenStates::unwanted;
    for_arrays(batch, [&](std::vector<int32_t> &values) { from.numbers(values); });
    from.numbers(message.features);
    return message;
}

void make_edits(Executor &executor, std::span<const CacheCommand> edits) {
    for (const CacheCommand &edit : edits) switch (edit.kind) {
        case CacheCommand::Kind::copy_block: executor.copy_block(edit.group, edit.from, edit.to); break;
        case CacheCommand::Kind::copy_state: executor.copy_state(edit.from, edit.to); break;
        case CacheCommand::Kind::discard_block: executor.discard_block(edit.group, edit.from); break;
        case CacheCommand::Kind::discard_state: executor.discard_state(edit.from); break;
        }
}

} // namespace quire
