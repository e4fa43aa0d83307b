// Decides which tokens of which sequences run in a step.  Pure: the clock and the tokens come from outside.
//
// Invariants (check() verifies them):
// - a sequence is in exactly one queue, and only running sequences hold blocks and states;
// - a running sequence's tables cover its computed tokens, and give back only the blocks of a draft; the pool's
//   references are theirs and those of pinned prefixes;
// - a pinned prefix gives way where a sequence could not run at all with it;
// - a refused submission or admission changes nothing;
// - the first running sequence of the policy's order advances in every step in which it has work, but for those that an
//   image fills;
// - a sequence is preempted for want of blocks at most max_preemptions times;
// - under the dynamic policy a key that waits is served within a bound: scheduler_yield.cpp.
//
// The two before the last hold because of guarding: a sequence that was preempted max_preemptions times comes first
// from then on, is admitted only when everything that it and the other guarded ones may ever need fits into the pool
// together, and is never a victim again.
//
// If layers keep a recurrent state, a prompt is cut into items that end where a snapshot is kept
// (kv/sequence_cache.h): at the prompt's last whole block, at ends of messages and images, and every snapshot_tokens
// tokens.  Decoding keeps a snapshot each time it fills a block, in place of the previous one.
//
// The source text of an encoder-decoder model is encoded as a whole by the step that admits its sequence, before the
// rows of that step; so it counts among the step's tokens.
//
// Rows of an image may attend to its later rows (kv/cache_spec.h, bidirectional_media).  A step then computes all of
// its rows that are not in the cache, which may exceed what the step is limited to for the sake of time and fairness.
// A sequence that finds too little room for an image comes first in the next step: then others may have to wait, but
// never in two steps in a row.
//
// Below the pool there may be tiers (kv/block_tiers.h).  A sequence that finds a longer prefix there waits, while others
// go on, until what it needs has been read; each plan takes a limited part of it into the pool.
//
// Drafted tokens are rows behind a sequence's last one (scheduler_draft.cpp): computed in the same step, wherever
// they take nothing from anybody.  Each append() after it says whether the next of them was right; the rest is taken
// back.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/scheduling/scheduler_policy.h"
#include "engine/scheduling/sequence.h"
#include "kv/pinned_prefixes.h"

namespace quire {

struct SchedulerConfig {
    SchedulingPolicy policy = SchedulingPolicy::fifo;
    DynamicWeights weights;
    int max_step_tokens = 512;
    int max_step_logit_rows = 512;
    std::optional<int64_t> max_step_kv_tokens; // sum of the cached tokens that a step attends to
    int max_running = 64; // sequences
    std::optional<int> kept_back_blocks; // free blocks that admission leaves; none: one per running sequence
    int max_preemptions = 4; // per sequence
    int turn_tokens = 32; // new tokens that a sequence computes before it yields to another key
    int snapshot_tokens = 1024; // distance between snapshots of recurrent state in a long text
    // Rows attend to each other both ways: a prompt is one item, and nothing is generated.
    enum class Prompts { divided, undivided } prompts = Prompts::divided;
};

struct PlanItem {
    SequenceId id;
    Sequence *sequence; // valid until the plan is committed
    int64_t first; // position of the first token
    int32_t n_tokens;
    int32_t n_logit_rows; // for the last tokens of the item
    int32_t n_drafted = 0; // the last tokens, which the sequence may turn out not to have
    int32_t n_encoded = 0; // tokens of its source, all of which are encoded before
};

struct Plan {
    uint64_t number = 0;
    std::vector<PlanItem> items;
    std::vector<CacheEdit> edits; // to be made in this order before the step
    std::vector<SequenceId> admitted, preempted;
    std::vector<SequenceId> yielded; // preempted in favour of another key
    int32_t n_tokens = 0; // those of sources included
    int32_t n_logit_rows = 0;
    size_t n_loaded = 0; // blocks and states that came from the tiers below
};

struct SchedulerStats {
    int64_t n_waiting = 0, n_running = 0, n_following = 0;
    int64_t n_waiting_tokens = 0; // to be computed or read, in sequences that wait
    int64_t n_preemptions = 0; // since the beginning, in favour of another key or not
    int64_t n_yields = 0; // preemptions in favour of another key
    int64_t n_paused = 0; // waiting because nobody reads their answers
    int64_t n_prefix_hit_tokens = 0; // tokens of new sequences that were in the cache
    int64_t n_recovered_tokens = 0; // tokens of preempted sequences that still were in the cache
    int64_t n_computed_tokens = 0;
    int64_t n_recomputed_tokens = 0; // computed before a preemption already
    // Tokens of admitted sequences that full-attention layers still had in the cache, while other layers had lost them.
    int64_t n_lost_hit_tokens = 0;
    int64_t n_drafted_tokens = 0; // computed; those that were right count as computed tokens as well
    int64_t n_accepted_tokens = 0; // drafted tokens that were right
    int64_t n_host_hit_tokens = 0, n_disk_hit_tokens = 0; // tokens of admitted sequences that tiers below had
};

class Scheduler {
  public:
    // RequestError where a budget is not positive, or running sequences could not each have a token in a step.
    Scheduler(SchedulerConfig config, std::shared_ptr<CachePool> pool);
    Scheduler(const Scheduler &) = delete;
    Scheduler &operator=(const Scheduler &) = delete;

    // One sequence per choice.  The first computes the prompt; the others follow, and share its blocks from then on.
    // CapacityError for what can never fit, RequestError for an empty prompt.
    std::vector<SequenceId> submit(SequenceSpec spec, int n_choices, double now_s);
    // CapacityError when such a sequence can never fit.  May be called from any thread.
    void require_fit(int64_t n_prompt, int64_t max_tokens, LogitRows rows = LogitRows::last,
                     int64_t n_source = 0) const;
    // CapacityError when a step cannot hold an image whose rows it has to compute together.  From any thread.
    void require_whole_media(const PromptMedia &media, LogitRows rows) const;
    // The next step; no items: nothing can run until a sequence is submitted, appended to or removed.  The edits of a
    // plan must be made even when it has no items or is not committed.
    Plan plan(double now_s);
    // Plans at most so many tokens; not fewer than max_running, and no more than max_step_tokens count.
    Plan plan_within(double now_s, int step_tokens);
    // The step ran: its tokens are computed, full blocks can be found, choices whose prompt is ready are running.
    // Every sequence that now lacks work waits for append() or remove().
    void commit(const Plan &plan);
    void require_current(const Plan &plan) const; // InternalError when the plan's pointers may be stale
    // The sampled token of a sequence without work.  Where it is the next drafted one, which is computed already, the
    // sequence still lacks work: the next row of logits of its item is that after the token.
    void append(SequenceId id, int32_t token);
    // How many drafted tokens a sequence can use in the next plan at most; 0 unless that plan may end its work.
    int64_t draft_limit(const Sequence &sequence) const;
    // Tokens that may follow, at most draft_limit() of them, for the next plan alone: it takes as many as there is room
    // for.
    void draft(SequenceId id, std::span<const int32_t> tokens);
    // The sequence's text is this from now on, and the row of logits after its last token is wanted.  What it has in
    // common with the text before stays computed, but no more than n_kept tokens.  RequestError for more than its
    // max_tokens, or none; not with recurrent states.
    void rewrite(SequenceId id, std::span<const int32_t> tokens, int64_t n_kept = std::numeric_limits<int64_t>::max());
    // The last n generated tokens are taken back, and the row of logits after the others is wanted again.  The sequence
    // gives back its blocks, as other text will follow, and finds the common ones again.  Plans are stale.
    void take_back(SequenceId id, int64_t n);
    // Nobody reads the sequence's answer: it gives back its place and its blocks, and waits until resume().  Plans
    // are stale.
    void pause(SequenceId id);
    void resume(SequenceId id);
    void remove(SequenceId id); // finished, cancelled or failed: its blocks are free; plans are stale

    // Keeps what the cache has of a text from being evicted.  CapacityError beyond the budget, half of the cache.
    PinnedPrefixes::Pinned pin(SequenceSpec spec);
    void unpin(PinId id) { pins_.remove(id); }
    const PinnedPrefixes &pins() const { return pins_; }

    void forget_published(); // the cache's contents were lost
    // Contents are looked for in the tiers, too, and offered to them.
    void use_tiers(std::shared_ptr<BlockTiers> tiers);
    // The longest prefix in the cache, the tiers included, and all keys that it needs.
    SequenceCache::Below find_prefix(const SequenceCache::Names &names, int64_t n_tokens);
    int64_t find_cached(SequenceSpec spec) const; // tokens of a text that pool and tiers have
    // The keys of a text that pool and tiers lack, and the tokens that they would save: all that a peer may have
    // (`held` is null), or the part that is of use with what it holds.  Empty without tiers.
    SequenceCache::Below find_missing(SequenceSpec spec, const TierKeys *held);
    void load(const std::vector<TierEntry> &entries); // into the pool, as far as there is room
    std::vector<CacheEdit> take_edits() { return pool_->take_edits(); } // to be made as those of a plan

    const Sequence &sequence(SequenceId id) const { return const_cast<Scheduler *>(this)->find(id); }
    const std::vector<Sequence *> &running() const { return running_; }
    const std::vector<Sequence *> &waiting() const { return waiting_; }
    bool contains(SequenceId id) const { return sequences_.contains(id); }
    bool empty() const { return sequences_.empty(); }
    SchedulerStats stats() const;
    const CachePool &pool() const { return *pool_; }
    const SchedulerConfig &config() const { return config_; }
    void check() const; // InternalError names the invariant that broke

  private:
    // The rest of a step's budgets; `held_*` is kept for decoding sequences whose turn is still to come, so that a
    // long prompt cannot stall them.
    struct Budget {
        int64_t tokens, logit_rows, kv_tokens;
        int64_t held_rows = 0, held_kv_tokens = 0;
        // If several keys have prompts to read, the share of the step that each may take for them.
        std::optional<int64_t> tokens_of_key = {}, rows_of_key = {};
        KeyCounts tokens_taken = {}, rows_taken = {};
        int64_t left_of_key(const Sequence &sequence, int64_t until_logits) const;
        void hold(const Sequence &decoding, int sign);
    };

    Sequence &find(SequenceId id);
    void order_running();
    KeyCounts n_running_of_keys() const;
    bool has_other_keys() const;
    void share_step(Budget &budget) const;
    void yield_place(Plan &plan);
    Sequence *first_waiting(const RankedSequences &waiting);
    Sequence *yielding_to(const Sequence &first, double n_of_key);
    bool can_enter(Sequence &sequence);
    bool has_had_its_turn(const Sequence &sequence) const;
    void run_running(Plan &plan, Budget &budget);
    void admit_waiting(Plan &plan, Budget &budget);
    bool admit(Sequence &sequence, Plan &plan, Budget &budget);
    bool ask_tiers(Sequence &sequence, const CacheMatch &match); // scheduler_tiers.cpp
    bool take_from_tiers(Sequence &sequence, CacheMatch &match, Plan &plan);
    void count_tier_tokens(Sequence &sequence, int64_t n_found);
    SequenceCache::Names names(Sequence &s) const { return {hashes(s), s.names_of_source.blocks}; }
    bool prefix_in_flight(std::span<const PrefixHash> hashes, int64_t n_matched, int64_t max_tokens) const;
    void require_source(int64_t n_source) const;
    void require_whole_prompt(int64_t n_prompt, int64_t max_tokens, LogitRows rows) const;
    int64_t snapshot_distance() const { // in whole blocks
        return pool_->blocks_for_tokens(config_.snapshot_tokens) * pool_->block_tokens();
    }
    int64_t next_message_end(const Sequence &sequence, int64_t n_computed) const;
    int64_t next_snapshot(const Sequence &sequence, int64_t n_computed) const;
    void keep_state(Sequence &sequence);
    bool room_for_guarded(const Sequence &sequence) const;
    int64_t chunk(const Sequence &sequence, int64_t n_computed, const Plan &plan, const Budget &budget);
    int64_t with_whole_media(const Sequence &sequence, int64_t n_computed, int64_t n, int64_t limit);
    bool admit_for_media(Plan &plan, Budget &budget);
    bool run_one(Sequence &sequence, Plan &plan, Budget &budget);
    bool is_media_turn(const Sequence &sequence) const { return media_turn_ == sequence.id; }
    bool make_room(Sequence &sequence, int64_t n, Plan &plan, Budget &budget);
    void add_item(Sequence &sequence, int64_t n, int64_t n_drafted, Plan &plan, Budget &budget);
    int64_t draft_room(const Sequence &sequence, int64_t n, const Budget &budget) const;
    void await_verdict(Sequence &sequence, const PlanItem &item);
    void take_verdict(Sequence &sequence, int32_t token);
    void settle(Sequence &sequence);
    void advance(Sequence &sequence);
    void vacate(Sequence &sequence);
    void preempt(Sequence &sequence);
    void start_followers(Sequence &leader);
    void replace_leader(Sequence &leader);
    bool is_guarded(const Sequence &s) const { return s.n_preemptions >= config_.max_preemptions; }
    std::span<const PrefixHash> hashes(Sequence &s) const { return s.chain.of(s.tokens); }
    CacheNeed most_needed(int64_t n_computed, int64_t n_source) const {
        return pool_->most_needed(n_computed, config_.max_step_tokens, n_source);
    }
    bool undivided() const { return config_.prompts == SchedulerConfig::Prompts::undivided; }
    void check_sequence(const Sequence &sequence) const;
    void check_references() const;

    SchedulerConfig config_;
    std::shared_ptr<CachePool> pool_;
    PinnedPrefixes pins_;
    std::shared_ptr<BlockTiers> tiers_; // null: none
    size_t load_bytes_left_ = 0; // for the plan that is being made
    PolicyRanks ranks_;
    std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
    std::vector<Sequence *> waiting_;
    std::vector<Sequence *> running_; // in rank order after each plan
    std::optional<SequenceId> media_waits_; // found no room for an image in this plan
    std::optional<SequenceId> media_turn_; // found none in the last plan, so that it comes first in this one
    uint64_t n_submitted_ = 0;
    uint64_t n_plans_ = 0;
    SchedulerStats totals_;
};

} // namespace quire
