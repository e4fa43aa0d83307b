#include "testing/scripted_drafter.h"

#include <algorithm>

#include "core/error.h"
#include "engine/sampling/random.h"

namespace quire {

ScriptedDrafter::ScriptedDrafter(std::vector<std::vector<int32_t>> scripts, double agreement, uint64_t seed,
                                 int32_t n_vocab, double token_read_s)
    : scripts_(std::move(scripts)), agreement_(agreement), seed_(seed), n_vocab_(n_vocab), token_read_s_(token_read_s) {
    if (!(agreement >= 0 && agreement <= 1))
        throw RequestError("scripted_drafter", cat("agreement ", agreement, " is out of range: expected 0 to 1"));
}

int ScriptedDrafter::find(const DraftWish &wish) const {
    for (size_t i = 0; i < scripts_.size(); ++i)
        if (scripts_[i].size() > wish.tokens.size() &&
            std::ranges::equal(wish.tokens, std::span(scripts_[i]).first(wish.tokens.size())))
            return static_cast<int>(i);
    return -1;
}

int32_t ScriptedDrafter::token(SequenceId sequence, int script, size_t position) const {
    const int32_t right = scripts_[static_cast<size_t>(script)][position];
    const bool agrees = token_random(seed_, static_cast<uint32_t>(sequence), position).draw < agreement_;
    return agrees ? right : (right + 1) % n_vocab_;
}

void ScriptedDrafter::propose(std::span<DraftWish *const> wishes) {
    for (DraftWish *wish : wishes) {
        const auto [entry, is_new] = chosen_.try_emplace(wish->sequence, -1);
        if (is_new) entry->second = find(*wish);
        if (entry->second < 0) continue;
        const size_t size = scripts_[static_cast<size_t>(entry->second)].size(), n = wish->tokens.size();
        for (size_t i = n; i < std::min(size, n + static_cast<size_t>(wish->most)); ++i)
            wish->proposal.push_back(token(wish->sequence, entry->second, i));
    }
}

} // namespace quire
