// The part of sequence_cache.h that knows of the tiers below the pool.
#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "kv/sequence_cache.h"

namespace quire {

SequenceCache::Below SequenceCache::match_below(const Names &names, int64_t max_tokens, BlockTiers &tiers) const {
    Below below;
    if (pool_->keeps_nothing()) return below;
    std::unordered_map<TierKey, bool, TierKeyHasher> asked; // each file is looked for once
    const Has has = [&](const TierKey &key) {
        if (pool_->has(key)) return true;
        const auto [found, is_new] = asked.try_emplace(key);
        if (is_new) found->second = tiers.has(key);
        return found->second;
    };
    int64_t n_blocks = std::min(static_cast<int64_t>(names.text.size()), max_tokens / pool_->block_tokens());
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (!pool_->lifetime(i).keeps_all()) continue;
        int64_t n = 0;
        while (n < n_blocks && has({static_cast<int>(i), names.text[static_cast<size_t>(n)]})) ++n;
        n_blocks = n;
    }
    n_blocks = fitting_prefix(names.text, n_blocks, has);
    below.n_tokens = n_blocks * pool_->block_tokens();
    for (const TierKey &key : keys_of(names, n_blocks))
        if (!pool_->has(key)) below.keys.push_back(key);
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (!is_source(i)) continue;
        std::vector<TierKey> keys;
        for (const PrefixHash &name : names.source) keys.push_back({static_cast<int>(i), name});
        if (!std::ranges::all_of(keys, has)) continue; // all of it or nothing
        std::ranges::copy_if(keys, std::back_inserter(below.keys),
                             [&](const TierKey &key) { return !pool_->has(key); });
    }
    return below;
}

std::vector<TierKey> SequenceCache::keys_of(const Names &names, int64_t n_blocks) const {
    std::vector<TierKey> keys;
    for (size_t i = 0; i < tables_.size(); ++i)
        for (int64_t block = first_needed(i, n_blocks); !is_source(i) && block < n_blocks; ++block)
            keys.push_back({static_cast<int>(i), names.text[static_cast<size_t>(block)]});
    if (pool_->has_states() && n_blocks > 0)
        keys.push_back({CacheEdit::states, names.text[static_cast<size_t>(n_blocks) - 1]});
    return keys;
}

void SequenceCache::touch(const Names &names, const CacheMatch &match) const {
    const auto touch = [](BlockPool &pool, const PrefixHash &name) {
        if (const auto block = pool.find(name)) pool.touch(*block);
    };
    for (size_t i = 0; i < tables_.size(); ++i) {
        const std::span<const PrefixHash> hashes = is_source(i) ? names.source : names.text;
        for (int32_t block = match.groups[i].n_blocks; block-- > match.groups[i].first_block;)
            touch(*pool_->group(i), hashes[static_cast<size_t>(block)]);
    }
    if (const auto n = static_cast<size_t>(match.n_tokens / pool_->block_tokens()); pool_->has_states() && n > 0)
        touch(pool_->states(), names.text[n - 1]);
}

} // namespace quire
