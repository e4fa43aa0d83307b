// The parts of the decoder that save and restore prefixes.  Files are read and written on the caller's thread, and the
// pool is read and filled on the decoder's, a limited part at a time.
#include <cstring>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "engine/decoding/decoder.h"
#include "kv/prefix_file.h"

namespace quire {
namespace {

constexpr size_t most_at_once = size_t{32} << 20; // bytes that the decoder's thread copies
constexpr int most_tries = 3; // where blocks are evicted meanwhile

} // namespace

std::vector<PrefixHash> DecoderLoop::names_of(const PrefixText &text) const {
    HashChain chain(text.context, scheduler_.pool().block_tokens(), text.media);
    const auto names = chain.of(text.tokens);
    return {names.begin(), names.end()};
}

SequenceCache::Below DecoderLoop::find_prefix(std::span<const PrefixHash> names) {
    const auto n_tokens = static_cast<int64_t>(names.size()) * scheduler_.pool().block_tokens();
    return scheduler_.find_prefix({names}, n_tokens);
}

std::vector<TierEntry> DecoderLoop::read_prefix(std::span<const TierKey> keys) {
    Plan plan;
    plan.edits = scheduler_.take_edits();
    if (!run(plan)) throw CapacityError("prefix", "the cache was lost");
    std::vector<TierEntry> entries;
    size_t bytes = 0;
    for (const TierKey &key : keys) {
        if (bytes >= most_at_once) break;
        entries.push_back({key, runner_.read(key, scheduler_.pool()), TierKind::host});
        bytes += entries.back().data.size_bytes();
    }
    return entries;
}

SequenceCache::Below DecoderLoop::find_missing(ActiveRequest &request, const TierKeys *held) {
    return scheduler_.find_missing(request.take_spec(), held);
}

void DecoderLoop::load_prefix(const std::vector<TierEntry> &entries) { scheduler_.load(entries); }

void DecoderLoop::keep_prefixes() {
    if (!tiers_ || frozen_) return;
    const CachePool &pool = scheduler_.pool();
    Plan plan;
    plan.edits = scheduler_.take_edits();
    run(plan);
    // Files of what can still be found were used until now; there is no time to write what is not on disk.
    const auto touch = [&](int group, const BlockPool &blocks) {
        for (const BlockId block : blocks.free_blocks())
            if (const auto &name = blocks.hash(block)) tiers_->wants({group, *name}, TierOffer::published);
    };
    for (size_t i = 0; i < pool.n_groups(); ++i) touch(static_cast<int>(i), *pool.group(i));
    if (pool.has_states()) touch(CacheEdit::states, pool.states());
}

int64_t Decoder::export_prefix(const PrefixText &text, const std::string &path, const std::string &note,
                               const std::string &model) {
    require_prefixes();
    const TierIdentity identity = identity_for(model);
    const std::vector<PrefixHash> names = loop_.names_of(text);
    for (int n_tries = 0; n_tries < most_tries; ++n_tries) {
        const SequenceCache::Below prefix = ask([&](DecoderLoop &loop) { return loop.find_prefix(names); });
        if (prefix.n_tokens == 0) throw RequestError("prefix", "nothing to save: the text is not in the cache");
        PrefixFileWriter writer(path, identity, note);
        const std::span<const TierKey> keys = prefix.keys;
        bool is_whole = true;
        for (size_t n_read = 0; n_read < keys.size() && is_whole;) {
            std::vector<TierEntry> entries =
                ask([&](DecoderLoop &loop) { return loop.read_prefix(keys.subspan(n_read)); });
            n_read += entries.size();
            for (TierEntry &entry : entries) {
                if (!entry.data && loop_.tiers() != nullptr) entry.data = loop_.tiers()->get(entry.key);
                is_whole = is_whole && entry.data;
                if (is_whole) writer.add(entry.key, entry.data);
            }
        }
        if (!is_whole) continue;
        writer.finish(prefix.n_tokens);
        return prefix.n_tokens;
    }
    throw CapacityError("prefix", "parts of the text were evicted from the cache while it was saved");
}

TierIdentity Decoder::identity_for(const std::string &model) const {
    return model.empty() ? identity_ : tier_identity(model, executor_->cache());
}

int64_t Decoder::import_prefix(const PrefixText &text, const std::string &path, const std::string &model) {
    require_prefixes();
    const std::vector<PrefixHash> names = loop_.names_of(text);
    const std::unordered_set<PrefixHash, PrefixHashHasher> known(names.begin(), names.end());
    PrefixFileReader reader(path, identity_for(model), TierSizes(executor_->cache()));
    std::vector<TierEntry> entries;
    size_t bytes = 0;
    const auto load = [&] {
        ask([&](DecoderLoop &loop) { loop.load_prefix(entries); });
        entries.clear();
        bytes = 0;
    };
    while (auto entry = reader.next()) {
        if (!known.contains(entry->key.name)) continue; // another text's, or under another salt
        bytes += entry->data.size_bytes();
        entries.push_back(std::move(*entry));
        if (bytes >= most_at_once) load();
    }
    load();
    return ask([&](DecoderLoop &loop) { return loop.find_prefix(names); }).n_tokens;
}

SequenceCache::Below Decoder::find_missing(Request request, const TierKeys *held) {
    if (loop_.tiers() == nullptr || loop_.tiers()->is_retired() || decoder_start_ || executor_->undivided_prompts())
        return {};
    const auto text = std::make_shared<ActiveRequest>(std::move(request), vocab_, n_ctx_, decoder_start_);
    return ask([text, held](DecoderLoop &loop) { return loop.find_missing(*text, held); });
}

bool Decoder::keep_record(std::span<const uint8_t> record) {
    CacheTiers *tiers = loop_.tiers();
    if (tiers == nullptr) return true;
    RecordHeader header{};
    const bool is_header = record.size() == header.size(); // alone: is the rest worth reading?
    if (is_header) {
        std::memcpy(header.data(), record.data(), header.size());
        const auto info = read_header(header, tiers->identity());
        if (info && tiers->sizes().of(info->key.group) == info->size_bytes) return true;
    }
    const auto entry = is_header ? std::nullopt : read_record(record, tiers->identity(), tiers->sizes());
    if (!entry) throw LoadError("cache-peers", "a block is damaged or of another model");
    return tiers->keep(*entry);
}

std::string Decoder::cache_identity() const { return identity_name(identity_); }

void Decoder::require_prefixes() const {
    if (decoder_start_ || executor_->undivided_prompts() || loop_.scheduler().pool().keeps_nothing())
        throw UnsupportedError("prefix", "the model keeps no prefixes of texts");
}

} // namespace quire
