// The parts of the scheduler that use the tiers below the pool.
#include <algorithm>
#include <utility>

#include "engine/scheduling/scheduler.h"

namespace quire {

void Scheduler::use_tiers(std::shared_ptr<BlockTiers> tiers) {
    tiers_ = std::move(tiers);
    pool_->make_offers();
}

// Looks for a longer prefix below, once.  False: another sequence is fetching the same.
bool Scheduler::ask_tiers(Sequence &s, const CacheMatch &match) {
    if (s.has_asked_tiers) return true;
    SequenceCache::Below below = s.cache.match_below(names(s), s.next_logit, *tiers_);
    const bool has_source = std::ranges::any_of(below.keys, [this](const TierKey &key) {
        return key.group != CacheEdit::states && pool_->lifetime(static_cast<size_t>(key.group)).of_source;
    });
    const int64_t n_gained = below.n_tokens - match.n_tokens + (has_source ? s.n_source() : 0);
    s.has_asked_tiers = true;
    s.n_before_tiers = match.n_tokens;
    s.host_bytes = s.disk_bytes = 0;
    if (n_gained <= 0 || below.keys.empty() || !tiers_->is_worth_reading(below.keys, n_gained)) return true;
    const TierKey first = below.keys.front();
    if (std::ranges::any_of(waiting_,
                            [&](const Sequence *other) { return other->fetch && other->first_fetched == first; })) {
        s.has_asked_tiers = false;
        return false;
    }
    s.first_fetched = first;
    s.fetch = tiers_->fetch(std::move(below.keys));
    return true;
}

// Part of what has arrived moves to the pool.  True once all of it is there; `match` is what the pool has then.
bool Scheduler::take_from_tiers(Sequence &s, CacheMatch &match, Plan &plan) {
    const std::vector<TierEntry> entries = s.fetch->take(load_bytes_left_);
    if (!entries.empty()) s.cache.touch(names(s), match);
    for (const TierEntry &entry : entries) {
        const size_t bytes = entry.data.size_bytes();
        load_bytes_left_ -= std::min(load_bytes_left_, bytes);
        (entry.from == TierKind::host ? s.host_bytes : s.disk_bytes) += bytes;
        pool_->load(entry);
        ++plan.n_loaded; // there may be more: the next plan comes at once
    }
    if (!s.fetch->is_done()) return false;
    s.fetch.reset();
    match = s.cache.match(names(s), s.next_logit);
    return true;
}

void Scheduler::forget_published() {
    pins_.clear();
    pool_->forget_published();
    for (Sequence *s : waiting_) s->fetch.reset(); // they would be found again
}

SequenceCache::Below Scheduler::find_prefix(const SequenceCache::Names &names, int64_t n_tokens) {
    const SequenceCache cache(pool_, config_.max_step_tokens);
    SequenceCache::Below found{cache.match(names, n_tokens).n_tokens, {}};
    if (tiers_) found.n_tokens = cache.match_below(names, n_tokens, *tiers_).n_tokens;
    found.keys = cache.keys_of(names, found.n_tokens / pool_->block_tokens());
    return found;
}

int64_t Scheduler::find_cached(SequenceSpec spec) const {
    const auto n_tokens = static_cast<int64_t>(spec.tokens.size()) - 1; // one is computed in any case
    Sequence text(SequenceId{}, std::move(spec), 0, pool_, config_.max_step_tokens);
    if (pool_->keeps_nothing()) return 0;
    const SequenceCache::Names names{hashes(text), {}};
    const int64_t n_found = text.cache.match(names, n_tokens).n_tokens;
    return tiers_ ? std::max(n_found, text.cache.match_below(names, n_tokens, *tiers_).n_tokens) : n_found;
}

namespace {

// The tiers, as if they had what a peer has.
class WithPeer : public BlockTiers {
  public:
    WithPeer(BlockTiers &own, const TierKeys &held) : own_(own), held_(held) {}
    bool has(const TierKey &key) override { return held_.contains(key) || own_.has(key); }
    bool wants(const TierKey &, TierOffer) override { return false; }
    void put(const TierKey &, TierData, TierOffer) override {}
    bool is_worth_reading(std::span<const TierKey>, int64_t) override { return false; }
    std::unique_ptr<TierFetch> fetch(std::vector<TierKey>) override { return nullptr; }

  private:
    BlockTiers &own_;
    const TierKeys &held_;
};

} // namespace

SequenceCache::Below Scheduler::find_missing(SequenceSpec spec, const TierKeys *held) {
    const auto n_tokens = static_cast<int64_t>(spec.tokens.size()) - 1; // one is computed in any case
    Sequence text(SequenceId{}, std::move(spec), 0, pool_, config_.max_step_tokens);
    if (!tiers_ || !text.names_of_source.blocks.empty() || pool_->keeps_nothing()) return {};
    const SequenceCache::Names names{hashes(text), {}};
    const int64_t n_own =
        std::max(text.cache.match(names, n_tokens).n_tokens, text.cache.match_below(names, n_tokens, *tiers_).n_tokens);
    SequenceCache::Below found;
    if (held != nullptr) {
        WithPeer both(*tiers_, *held);
        found = text.cache.match_below(names, n_tokens, both);
        found.n_tokens = std::max<int64_t>(0, found.n_tokens - n_own);
        if (found.n_tokens == 0) found.keys.clear();
        std::erase_if(found.keys, [&](const TierKey &key) { return tiers_->has(key); });
        return found;
    }
    const int64_t n_blocks = std::min(n_tokens / pool_->block_tokens(), static_cast<int64_t>(names.text.size()));
    found.n_tokens = n_blocks * pool_->block_tokens() - n_own;
    for (int64_t block = n_own / pool_->block_tokens(); block < n_blocks; ++block) {
        const PrefixHash &name = names.text[static_cast<size_t>(block)];
        for (size_t i = 0; i < pool_->n_groups(); ++i) found.keys.push_back({static_cast<int>(i), name});
        if (pool_->has_states()) found.keys.push_back({CacheEdit::states, name});
    }
    return found;
}

void Scheduler::load(const std::vector<TierEntry> &entries) {
    for (const TierEntry &entry : entries) pool_->load(entry);
}

void Scheduler::count_tier_tokens(Sequence &s, int64_t n_found) {
    const auto all = static_cast<double>(s.host_bytes + s.disk_bytes);
    const int64_t n_gained = std::max<int64_t>(0, n_found - s.n_before_tiers);
    if (all == 0 || n_gained == 0) return;
    const auto n_disk =
        static_cast<int64_t>(static_cast<double>(n_gained) * static_cast<double>(s.disk_bytes) / all + 0.5);
    totals_.n_disk_hit_tokens += n_disk;
    totals_.n_host_hit_tokens += n_gained - n_disk;
    if (s.was_preempted()) return;
    s.n_from_disk = n_disk;
    s.n_from_host = n_gained - n_disk;
}

} // namespace quire
