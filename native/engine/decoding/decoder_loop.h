// The decoder without its thread: plans, runs, samples, commits.  One thread at a time.
//
// Invariant: a sequence of the scheduler belongs to exactly one choice of one active request, and the other way round
// for every choice that has not ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "engine/decoding/active_request.h"
#include "engine/decoding/decoder_config.h"
#include "engine/decoding/prefix_text.h"
#include "engine/decoding/step_pace.h"
#include "engine/scheduling/step_runner.h"

namespace quire {

struct DecoderStats {
    SchedulerStats scheduler;
    int64_t n_steps = 0;
    int64_t n_failed_steps = 0;
    int64_t n_step_sequences = 0; // summed over the steps
    int64_t n_requests = 0; // active now
    int64_t n_generated_tokens = 0;
    int64_t n_masked_tokens = 0; // drawn through a grammar's mask
    int64_t n_late_masks = 0;    // masked tokens drawn later than they could have been without
    int64_t n_usable_blocks = 0, n_free_blocks = 0; // each with the bytes of a block in every group
    int64_t n_published_blocks = 0, n_evictions = 0; // summed over the groups
    CacheStats cache;
    int64_t n_pins = 0, n_pinned_bytes = 0, n_most_pinned_bytes = 0; // n_pins: prefixes kept from eviction
    int64_t n_pins_given_way = 0; // pins that were dropped so that a request could run
    std::optional<CacheTiersStats> tiers; // below the pool
    std::vector<DrafterStats> drafters; // in the order in which they are asked
    int64_t n_failed_checks = 0; // checks of the invariants, when idle
    std::string failed_check;    // message of the last failed check
};

class DecoderLoop {
  public:
    DecoderLoop(const std::shared_ptr<Executor> &executor, const DecoderConfig &config,
                std::vector<std::shared_ptr<Drafter>> drafters);

    // For any thread: checks whether a request can fit at all, and which drafters there are.
    const Scheduler &scheduler() const { return scheduler_; }
    void close_drafters() { speculator_.close(); } // after the last step
    const Speculator &speculator() const { return speculator_; }
    CacheTiers *tiers() const { return tiers_.get(); } // null: none

    void start(std::unique_ptr<ActiveRequest> request);
    void cancel(RequestId id); // a no-op for unknown requests, which have ended already
    void cancel_all();
    void pause(RequestId id, bool paused); // pauses or resumes; a no-op for unknown requests
    void provide_logits(RequestId id, int choice, std::span<float> logits);
    PinnedPrefixes::Pinned pin(ActiveRequest &request);
    SequenceCache::Below find_missing(ActiveRequest &request, const TierKeys *held);
    void unpin(PinId id) { scheduler_.unpin(id); }
    // Frozen: no step runs, and requests wait.
    void freeze(bool frozen) { frozen_ = frozen; }
    void forget_prefixes() { // no later request finds them
        scheduler_.forget_published();
        if (tiers_) tiers_->retire();
    }
    void resume(RequestId id, int choice); // the mask that a choice waited for is there
    void keep_prefixes(); // gives what is still to be offered to the tiers below the pool
    // Prefixes of texts on their way to a file and back: decoder_prefixes.cpp.
    std::vector<PrefixHash> names_of(const PrefixText &text) const; // for any thread
    SequenceCache::Below find_prefix(std::span<const PrefixHash> names);
    std::vector<TierEntry> read_prefix(std::span<const TierKey> keys); // some of the first ones
    void load_prefix(const std::vector<TierEntry> &entries);
    // Runs one step; false when nothing can run before the next command.
    bool step();
    void fail_all(ErrorKind kind, const std::string &message);
    void check(); // checks the invariants; a failure is counted and ends nothing
    std::vector<Event> take_events() { return std::exchange(events_, {}); }
    DecoderStats stats() const;

  private:
    struct Owner {
        ActiveRequest *request;
        int choice;
    };
    // Rows of a step that could not be drawn from at its end, as the mask of the first of them was missing.
    struct Late {
        RequestId request;
        int choice;
        ItemRows rows;
    };
    void draft(); // decoder_drafts.cpp
    void draft_beginning(const Sequence &sequence);
    void draft_beginnings();
    void await_mask(MaskLease &masks, int choice, double start_s, double patience_s);
    void await_forced_text();
    void prefetch_masks(const Plan &plan);
    void announce(const Plan &plan);
    void tell_progress(const ActiveRequest &request, const PlanItem &item);
    StepWants wants_of(const Plan &plan) const;
    void show_features(const ActiveRequest &request, const PlanItem &item, std::span<const float> features);
    bool run(const Plan &plan); // false: the step failed, and so did its requests
    void take_rows(const Owner &owner, const PlanItem &item, const ItemRows &rows); // decoder_draws.cpp
    void draw_rows(ActiveRequest &request, int choice, const ItemRows &rows);
    double draw_late(double step_s); // seconds spent waiting
    double late_mask_patience(double step_s);
    void draw_late_rows(const Late &late);
    void draw_held(ActiveRequest &request, int choice);
    bool awaits_token(const Choice &choice) const;
    // True if a token was drawn; otherwise the choice's state says what it waits for.
    bool next_token(ActiveRequest &request, int choice, const LogitRow &row);
    bool draw_when_masked(ActiveRequest &request, int choice, const LogitRow &row);
    void draw(ActiveRequest &request, int choice, const LogitRow &row);
    void append(Choice &choice, int32_t token);
    void end(ActiveRequest &request, int choice, const Ending &ending);
    void release(Choice &choice);
    void cancel(ActiveRequest &request);
    void fail(ActiveRequest &request, ErrorKind kind, const std::string &message);
    // Calls `work` for a request; an exception ends that request alone.  Forgets the request when it has ended.
    void guarded(ActiveRequest &request, const std::function<void()> &work);

    std::shared_ptr<CacheTiers> tiers_; // null: none
    StepRunner runner_;
    Scheduler scheduler_;
    StepPace pace_;
    Speculator speculator_;
    std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
    std::unordered_map<SequenceId, Owner> owners_;
    std::vector<Event> events_;
    std::vector<Late> late_; // empty between steps
    bool frozen_ = false;
    bool awaited_ = false;   // the forced text of the next step was waited for
    DecoderStats totals_;
};

} // namespace quire
