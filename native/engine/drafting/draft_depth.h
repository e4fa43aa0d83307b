// Decides how many drafted tokens are worth their rows.  Pure: times come from outside.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace quire {

// Cost of a step by its rows, as it was lately.  Rows are nearly free while reading the weights takes most of the time.
class StepCost {
  public:
    // A prompt's rows have no logits: its steps give a lower bound for so many rows, if nothing better is known.
    void took(int n_rows, double seconds, bool all_have_logits = true);
    bool knows(int n_rows) const { // steps of about so many rows
        return bins_[bin(n_rows)].n > 1 || prompt_bins_[bin(n_rows)].n > 1;
    }
    // Never less for more rows.  Numbers of rows never seen are expected to cost little more, until they are seen.
    double seconds(int n_rows) const;

  private:
    // Kernels take rows by fours, eights, sixteens, so small numbers of rows are told apart exactly.
    static constexpr std::array<int, 27> knots = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13, 14,
                                                  15, 16, 17, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512};
    static size_t bin(int n_rows);
    struct Bin {
        double rows = 0, seconds = 0; // means
        int n = 0;
    };
    using Bins = std::array<Bin, knots.size()>;
    static void add(Bin &bin, int n_rows, double seconds);
    Bins bins_, prompt_bins_;
};

// How often drafted tokens were right, the latest weighted most.
struct DraftRate {
    double right = 0, judged = 0;
    void judge(bool is_right, double memory) {
        right = right * memory + is_right;
        judged = judged * memory + 1;
    }
    void fade(double memory) { right *= memory, judged *= memory; }
    double given(double expected, double weight) const { return (right + weight * expected) / (judged + weight); }
};

inline constexpr double highest_rate = 0.999; // rate of certain tokens: an answer may end before them

// A proposal: that many tokens, each right with this probability if those before it are.
struct DraftOffer {
    int n_tokens;
    double rate;
    int least = 0; // so many are taken whatever they cost
    int n_certain = 0; // the first of them
    int taken = 0;
};

// Takes of each offer the depth that gives the most tokens a second, if a step without drafts has n_rows rows and gives
// n_tokens tokens.
void choose_depths(std::span<DraftOffer> offers, int n_tokens, int n_rows, const StepCost &cost);
// Depth before anything is proposed, if each further token of all proposals takes draft_s seconds.
struct DepthChoice {
    int depth = 0;
    double advantage = 1; // tokens a second, over those without
};
DepthChoice choose_depth(std::span<const double> rates, int most, int n_tokens, int n_rows, const StepCost &cost,
                         double draft_s);

} // namespace quire
