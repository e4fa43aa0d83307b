// One choice of one request, as the scheduler sees it: tokens, of which a leading part is computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduling/prompt_media.h"
#include "graph/trace/adapter_use.h"
#include "kv/prefix_hash.h"
#include "kv/sequence_cache.h"

namespace quire {

enum class SequenceId : uint64_t {};
enum class LogitRows { last, every }; // for the prompt: only the row that is sampled from, or one per position
inline constexpr int64_t no_second_text = std::numeric_limits<int64_t>::max();
// An adapter that a sequence holds, the scale that it is added with, and the first position that has it.
struct HeldAdapter {
    std::shared_ptr<const LowRankAdapter> adapter;
    float scale;
    int64_t first = 0;
};
enum class SequenceQueue { waiting, running, following };

struct SequenceSpec {
    std::vector<int32_t> tokens; // the prompt
    int64_t max_tokens = 0;      // prompt and generated together, at most
    PrefixContext context;
    int priority = 0; // higher first, under the policies that look at it
    std::string key;  // requests of one key share their part of the machine
    LogitRows logit_rows = LogitRows::last;
    // Ends of messages and images in the prompt, where others may take up the conversation: recurrent state is kept
    // there.
    std::vector<int64_t> snapshot_positions;
    int64_t second_text = no_second_text; // first position of the second text of a pair
    // Text that an encoder reads, as a whole and before anything else; `tokens` then begin the text that answers it.
    std::vector<int32_t> source = {};
    std::shared_ptr<const PromptMedia> media = {}; // null: the prompt is text
    std::shared_ptr<const PromptMedia> source_media = {}; // rows that the encoder reads in place of tokens
    std::vector<HeldAdapter> adapters = {}; // which `context` names
    std::vector<float> steering = {}; // beside each token, which `context` names, too
};

// There are no phases: a sequence has work while a row of logits that it wants lies before its last token, and running
// it means computing tokens from n_computed on.  Prefill, decode, prefix hits and recomputation differ in n_computed
// alone.
struct Sequence {
    Sequence(SequenceId id, SequenceSpec spec, double arrival_s, std::shared_ptr<CachePool> pool, int64_t step_tokens)
        : id(id), tokens(std::move(spec.tokens)), n_prompt(static_cast<int64_t>(tokens.size())),
          max_tokens(spec.max_tokens), next_logit(spec.logit_rows == LogitRows::every ? 0 : n_prompt - 1),
          cache(pool, step_tokens), source(std::move(spec.source)),
          names_of_source(source_names(source, pool->block_tokens(), spec.context)), media(std::move(spec.media)),
          source_media(std::move(spec.source_media)),
          chain(names_of_source.context, pool->block_tokens(), media ? media->names() : std::vector<MediaName>()),
          snapshot_positions(std::move(spec.snapshot_positions)), priority(spec.priority), arrival_s(arrival_s),
          key(std::move(spec.key)), second_text(spec.second_text), adapters(std::move(spec.adapters)),
          steering(std::move(spec.steering)) {}

    SequenceId id;
    std::vector<int32_t> tokens; // prompt and generated
    int64_t n_prompt;
    int64_t max_tokens;
    int64_t n_computed = 0; // leading tokens whose K, V and state the cache holds
    int64_t next_logit; // first position whose row of logits is wanted and not delivered
    SequenceCache cache; // empty unless running
    // Tokens that may follow.  The last n_unverified of them are computed beside the others, and wait for append() to
    // say whether they are the ones.
    std::vector<int32_t> drafted;
    int64_t n_unverified = 0;
    int64_t draft_first = 0; // n_computed before they were computed
    std::vector<int32_t> source; // for an encoder-decoder model
    SourceNames names_of_source;
    bool is_encoded = false; // the cache holds the source's rows
    std::shared_ptr<const PromptMedia> media, source_media;
    HashChain chain;
    std::vector<int64_t> snapshot_positions;
    int priority;
    double arrival_s;
    std::string key;
    int64_t second_text;
    std::vector<HeldAdapter> adapters;
    std::vector<float> steering;
    SequenceQueue queue = SequenceQueue::waiting;
    std::vector<Sequence *> followers; // choices that will share the prompt once it is computed
    Sequence *leader = nullptr; // for a following sequence
    int n_preemptions = 0; // for want of blocks
    int n_yields = 0; // how often it gave up its place to another key, or while nobody read its answer
    bool is_paused = false; // nobody reads its answer: it does not run
    int64_t n_cached = 0; // prompt tokens found in the cache when first admitted
    std::unique_ptr<TierFetch> fetch; // contents on their way from the tiers below
    std::optional<TierKey> first_fetched;
    bool has_asked_tiers = false; // since it began to wait
    int64_t n_before_tiers = 0; // tokens in the pool when it asked
    size_t host_bytes = 0, disk_bytes = 0; // that came from the tiers since then
    int64_t n_from_host = 0, n_from_disk = 0; // prompt tokens of n_cached that the tiers had
    int64_t n_once_computed = 0; // as many were computed before a preemption
    int64_t n_found = 0; // tokens found in the cache when last admitted
    int64_t n_turns = 0; // that its key has had with it since then
    int64_t n_encoded_again = 0; // tokens of its source that were encoded again since then

    void forget_fetch() {
        fetch.reset();
        has_asked_tiers = false;
    }
    int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
    int64_t n_pending() const { return n_tokens() - n_computed; }
    bool has_work() const { return next_logit < n_tokens(); } // otherwise it waits for a token from outside
    bool may_run() const { return has_work() && !is_paused; }
    bool was_preempted() const { return n_preemptions + n_yields > 0; }
    // Tokens computed since it was last admitted: for the first time, and again.
    int64_t n_new() const { return std::max<int64_t>(0, n_computed - std::max(n_found, n_once_computed)); }
    int64_t n_repeated() const {
        return std::max<int64_t>(0, std::min(n_computed, n_once_computed) - n_found) + n_encoded_again;
    }
    bool is_decoding() const { return n_pending() == 1; }
    int64_t n_source() const { return static_cast<int64_t>(source.size()); }
    int64_t n_unencoded() const { return is_encoded ? 0 : n_source(); } // a step encodes all of them, or none
    int32_t token_at(int64_t position) const {
        return position < n_tokens() ? tokens[static_cast<size_t>(position)]
                                     : drafted[static_cast<size_t>(position - n_tokens())];
    }
    // Tokens that it may have to compute at most: a last generated token is not computed.
    int64_t max_computed() const { return std::max(n_prompt, max_tokens - 1); }
};

} // namespace quire
