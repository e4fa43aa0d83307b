#include "engine/drafting/head_drafter.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

constexpr int64_t most_kept = 256; // rows of a sequence that wait to be read; twice as many now and then
constexpr int64_t least_read = 16; // rows that are worth a thought before they are read

} // namespace

HeadDrafter::HeadDrafter(std::shared_ptr<Executor> executor, int64_t n_ctx, std::string name,
                         std::vector<int32_t> tokens)
    : ModelDrafter(std::move(executor), n_ctx), name_(std::move(name)), tokens_(std::move(tokens)) {
    if (n_features() < 1 || this->executor().n_features() != n_features())
        throw ShapeError("draft", cat("a head reads features of ", n_features(), " numbers but leaves ",
                                      this->executor().n_features()));
    if (!tokens_.empty() && tokens_.size() != static_cast<size_t>(n_vocab()))
        throw ShapeError("draft",
                         cat("a head with ", n_vocab(), " tokens maps ", tokens_.size(), " of them to the model's"));
}

void HeadDrafter::forget(SequenceId sequence, std::span<const int32_t> answer) {
    known_.erase(sequence);
    ModelDrafter::forget(sequence, answer);
}

int64_t HeadDrafter::end(const Known &known) const {
    return known.first + static_cast<int64_t>(known.rows.size()) / n_features();
}

// A row that is computed again, after a preemption or beside another draft, takes its old place.
void HeadDrafter::see(SequenceId sequence, int64_t first, std::span<const float> features) {
    Known &known = known_[sequence];
    const int64_t n = n_features();
    if (first < known.first || first > end(known)) {
        known.first = first;
        known.rows.clear();
    }
    known.rows.resize(static_cast<size_t>((first - known.first) * n));
    known.rows.insert(known.rows.end(), features.begin(), features.end());
    const int64_t n_more = end(known) - known.first - most_kept;
    if (n_more <= most_kept) return;
    known.rows.erase(known.rows.begin(), known.rows.begin() + n_more * n);
    known.first += n_more;
}

double HeadDrafter::reading_s(const DraftWish &wish) {
    const auto found = known_.find(wish.sequence);
    if (found == known_.end()) return 0;
    const Known &known = found->second;
    const int64_t n = end(known) - (is_read(wish.sequence) ? known.begin + known.n_read : known.first);
    return n < least_read ? 0 : token_read_s() * static_cast<double>(n);
}

std::optional<ModelDrafter::Text> HeadDrafter::text_of(const DraftWish &wish) {
    const auto found = known_.find(wish.sequence);
    if (found == known_.end()) return std::nullopt;
    Known &known = found->second;
    // The last token's row is not computed, and those behind it are of tokens that were not drawn.
    const int64_t n_positions = static_cast<int64_t>(wish.tokens.size()) - 1;
    if (end(known) < n_positions) return std::nullopt;
    if (const int64_t next = known.begin + known.n_read; std::min(next, n_positions - 1) < known.first)
        drop(wish.sequence); // features that it would read next are not kept
    if (!is_read(wish.sequence)) {
        known.begin = known.first;
        known.n_read = 0;
    }
    if (known.begin >= n_positions) return std::nullopt;
    known.n_of_model = n_positions - known.begin;
    known.next_row = -1;
    // Rows depend on more than their text, so nothing is shared.
    return Text{wish.tokens.subspan(static_cast<size_t>(known.begin + 1)), known.n_read,
                cat("sequence ", static_cast<uint64_t>(wish.sequence))};
}

const float *HeadDrafter::features_of_row(const Known &known, int64_t row) const {
    if (row >= known.n_of_model) return row == known.next_row ? known.next.data() : nullptr;
    const int64_t position = known.begin + row;
    if (position < known.first || position >= end(known)) return nullptr;
    return known.rows.data() + (position - known.first) * n_features();
}

std::span<const float> HeadDrafter::features_of(const Plan &plan) {
    const auto n = static_cast<size_t>(n_features());
    features_.clear();
    lost_.clear();
    for (const PlanItem &item : plan.items) {
        const SequenceId sequence = owner_of(item.id);
        const Known &known = known_.at(sequence);
        bool is_lost = false;
        for (int32_t i = 0; i < item.n_tokens; ++i) {
            const float *row = features_of_row(known, item.first + i);
            is_lost |= row == nullptr;
            if (row != nullptr)
                features_.insert(features_.end(), row, row + n);
            else
                features_.resize(features_.size() + n);
        }
        if (is_lost) lost_.push_back(sequence); // computed anew after a preemption of its own
    }
    return features_;
}

void HeadDrafter::has_read(const PlanItem &item, std::span<const float> features) {
    const SequenceId sequence = owner_of(item.id);
    if (std::ranges::find(lost_, sequence) != lost_.end()) return drop(sequence);
    Known &known = known_.at(sequence);
    known.next_row = item.first + item.n_tokens;
    known.n_read = std::min(known.next_row, known.n_of_model);
    const auto last = features.last(static_cast<size_t>(n_features()));
    known.next.assign(last.begin(), last.end());
}

} // namespace quire
