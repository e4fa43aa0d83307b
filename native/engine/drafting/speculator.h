// The drafters of a decoder, in the order in which they are asked, and how deep their drafts are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/drafting/draft_depth.h"
#include "engine/drafting/drafter.h"
#include "engine/sampling/token_mask.h"

namespace quire {

struct SpeculationConfig {
    int draft_max = 16; // tokens of a draft at most
    int draft_min = 0;  // so many whatever they cost, where a drafter proposes them
};

struct DrafterStats {
    std::string name;
    int64_t n_drafts = 0, n_drafted = 0, n_accepted = 0; // tokens, but for n_drafts
    std::vector<int64_t> drafted_at, accepted_at;        // by position in the draft
    double seconds = 0;                                  // spent on proposing
    std::string failure; // why it is no longer asked; empty: it still is
};

class Speculator {
  public:
    // RequestError for an invalid depth, or two drafters of one name.
    Speculator(std::vector<std::shared_ptr<Drafter>> drafters, SpeculationConfig config);

    bool empty() const { return drafters_.empty(); }
    int most() const { return config_.draft_max; }
    // The drafters that a name stands for: "auto" all, "off" none, or its own; RequestError lists the names.
    DrafterSet set(const std::string &name) const;
    bool has(const std::string &drafter) const;
    void require_features(int n) const; // ShapeError where a drafter reads others than the model's n
    DrafterSet certain() const; // those that need a grammar and are never wrong

    struct Wish : DraftWish {
        DrafterSet drafters = 0;
        int room = 0;                          // for tokens of all drafters together
        std::vector<int32_t> certain = {};     // the beginning of the proposal, until it is complete
        std::vector<int32_t> text = {};        // with those
        std::shared_ptr<const TokenMask> mask; // for the token behind `forced`; none: not known
    };
    // Fills the proposals of sequences that are in a step of n_rows rows and n_tokens drawn tokens.
    void propose(std::vector<Wish> &wishes, int n_tokens, int n_rows);
    // Proposes tokens for the beginning of an answer, beside the end of its prompt: forced ones alone, up to `most`.
    // They save a step and cost nothing, as they are computed in any case.
    std::span<const int32_t> begin(SequenceId sequence, std::span<const int32_t> forced, int64_t most);
    // True if one of these drafters reads features; and those of a step's rows for it, from position `first` on.
    bool reads_features(DrafterSet drafters) const;
    void see(SequenceId sequence, DrafterSet drafters, int64_t first, std::span<const float> features);
    // Tells how many tokens of the last proposal for a sequence are in the step.
    void planned(SequenceId sequence, int n_drafted);
    void judge(SequenceId sequence, bool is_right); // the next of them
    double step_seconds(int n_rows) const { return cost_.seconds(n_rows); } // 0: not known
    void took(int n_rows, double seconds, bool all_have_logits = true) { cost_.took(n_rows, seconds, all_have_logits); }
    void forget(SequenceId sequence, std::span<const int32_t> answer);
    std::vector<DrafterStats> stats() const;
    void close(); // closes all drafters

  private:
    struct Entry {
        std::shared_ptr<Drafter> drafter;
        std::array<DraftRate, n_draft_kinds> rates;
        double token_s = 0; // for proposing one more token for every sequence
        DrafterStats stats;
    };
    struct State { // one per sequence
        std::vector<DraftRate> rates; // by drafter
        size_t drafter = 0;           // the author of its last proposal
        size_t certain_drafter = 0;   // the author of the proposal's first n_certain tokens
        int n_certain = 0;
        int kind = 0, position = 0;
    };
    State &state(SequenceId sequence);
    bool is_asked(size_t drafter, DrafterSet drafters) const;
    double rate(const Wish &wish, size_t drafter, int kind);
    void ask_certain(size_t drafter, std::vector<Wish> &wishes);
    void ask(size_t drafter, std::vector<Wish *> &wishes, int n_tokens, int n_rows);
    double worth_s(const Wish &wish, double advantage, int n_tokens, int n_rows) const;
    void cut(std::vector<Wish> &wishes, int n_tokens, int n_rows);
    bool measures_without();
    void try_one_more(std::span<DraftOffer> offers);
    static bool cut_forbidden(Wish &wish); // true if nothing is left

    SpeculationConfig config_;
    std::vector<Entry> drafters_;
    std::unordered_map<SequenceId, State> sequences_;
    StepCost cost_;
    double answer_tokens_ = 128; // mean length of the last answers
    int n_since_without_ = 0; // steps since one without drafts
    int n_refused_ = 0;       // steps in a row that had less than what was proposed
};

} // namespace quire
