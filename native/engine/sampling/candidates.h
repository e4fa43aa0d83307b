// The tokens that may still be drawn, as the stages of the sampling chain change and narrow them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/row_scan.h"
#include "engine/sampling/token_map.h"
#include "engine/sampling/token_mask.h"

namespace quire {

struct Candidate {
    float logit;
    int32_t id;
};

// The order of likeliness, in which no two tokens are equal: by logit, equal ones by id.
inline bool likelier(const Candidate &a, const Candidate &b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// A candidate in an order other than likeliness: lower ranks first, equal ones by id.
struct Ranked {
    double rank;
    int32_t id;
    float weight;
};

inline bool comes_first(const Ranked &a, const Ranked &b) {
    return a.rank < b.rank || (a.rank == b.rank && a.id < b.id);
}

// max of a row; RequestError for NaN or +inf.  -inf where the whole row is.
float checked_max(std::span<const float> logits);
// The k likeliest above -inf into `out`, likeliest first; maxima as for find_above().
void select_top(std::span<const float> logits, std::span<const float> maxima, size_t k, std::vector<Candidate> &out);

// Two forms: *dense*, the row of the whole vocabulary (lent; single logits are changed where they lie, and put back by
// give_back(); a stage that changes all of them makes a copy), in which -inf means excluded; and *sparse*, a list, as
// soon as a stage has narrowed it.  Temperature is kept as a factor, so that scaling 150k logits costs nothing and
// loses no digits.
// Invariants: after start(), prepare() and every stage at least one token is left; the factor is positive; a sparse
// list holds no -inf; max() times the factor is finite.
class Candidates {
  public:
    void start(const LogitRow &row); // lent until give_back()
    void give_back();                // the row is as it was; no use of the candidates until the next start()
    void restrict_to(const TokenMask &mask);        // straight after start()
    void restrict_to(std::span<const int32_t> ids); // ascending
    void exclude(std::span<const int32_t> ids);     // ascending
    void require_some() const;                      // RequestError when nothing is left
    bool are_among(std::span<const int32_t> ids) const; // ascending

    // f(logit, value) gives the new logit of every token in `changes`.
    template <class Value, class F> void change(const TokenMap<Value> &changes, F &&f);
    void divide_by(double temperature);

    void keep_within(double distance);              // logits (scaled) of at least max - distance
    void keep_top(size_t k);                        // sorted afterwards
    void keep_first(size_t n);                      // for a sparse list
    template <class Keep> void filter(Keep &&keep); // keep(candidate, weight); becomes sparse, keeps the order
    // replace(candidate, weight): the new logit of each that is left, of any size; becomes sparse.
    template <class Replace> void replace(Replace &&replace);
    void sort();                                    // becomes sparse, likeliest first

    bool is_dense() const { return dense_; }
    bool is_sorted() const { return !dense_ && sorted_; }
    size_t size() const { return dense_ ? row_.size() : items_.size(); } // dense: excluded ones counted
    Candidate at(size_t i) const { return dense_ ? Candidate{row_[i], static_cast<int32_t>(i)} : items_[i]; }
    float max() const { return max_; }
    double factor() const { return factor_; }
    // The least logit that keep_within() leaves.
    double lowest_within(double distance) const { return static_cast<double>(max_) - distance / factor_; }
    // Distance below the likeliest, scaled: 0 or negative.  log p = relative(x) - log(total()).
    double relative(float logit) const { return (static_cast<double>(logit) - max_) * factor_; }

    // exp(relative(logit)) of each, and their sum.
    std::span<const float> weights();
    double total();
    double weight_of_likely(double distance); // the part of total() within this distance of the likeliest
    double entropy();                         // in nats
    size_t count() const;                     // without excluded ones
    double standard_deviation() const;        // over the unscaled logits
    // The k likeliest, likeliest first, without narrowing; valid until the next call.
    std::span<const Candidate> likeliest(size_t k);
    // All with rank(candidate), in the order of at(); valid until the next call.
    template <class Rank> std::vector<Ranked> &ranked(Rank &&rank);
    // The place where the running sum of probabilities passes u in [0, 1).
    size_t draw(double u);

  private:
    struct Change { // a changed logit of the row, as it was before
        int32_t id;
        float logit, maximum;
    };
    void set(int32_t id, float logit);
    float *own_row();
    void set_items(bool sorted);
    void find_max();

    bool dense_ = true;
    bool sorted_ = false;
    bool owned_ = false; // row_ points into own_
    bool weights_valid_ = false;
    std::span<float> row_, maxima_; // maxima of a row of our own are not known
    std::vector<Change> changes_;
    std::vector<float> own_;
    std::vector<Candidate> items_, next_items_;
    std::vector<Ranked> ranked_;
    std::vector<float> weights_;
    std::vector<double> block_totals_;
    double total_ = 0.0;
    double factor_ = 1.0;
    float max_ = 0.0f;
};

template <class Value, class F> void Candidates::change(const TokenMap<Value> &changes, F &&f) {
    const float factor = static_cast<float>(factor_);
    const auto changed = [&](float logit, const Value &value) {
        return logit == -INFINITY ? logit : std::clamp<float>(f(logit, value), -largest_logit, largest_logit);
    };
    if (dense_) {
        if (factor_ != 1.0) {
            float *row = own_row();
            for (size_t i = 0; i < row_.size(); ++i) row[i] *= factor;
        }
        for (const auto &entry : changes.entries())
            set(entry.id, changed(row_[static_cast<size_t>(entry.id)], entry.value));
    } else {
        for (Candidate &item : items_) {
            item.logit = std::max(item.logit * factor, -largest_logit);
            if (const Value *value = changes.find(item.id)) item.logit = changed(item.logit, *value);
        }
        sorted_ = false;
    }
    factor_ = 1.0;
    find_max();
}

template <class Rank> std::vector<Ranked> &Candidates::ranked(Rank &&rank) {
    const std::span<const float> weight = weights();
    ranked_.clear();
    for (size_t i = 0; i < size(); ++i) {
        const Candidate item = at(i);
        if (item.logit > -INFINITY) ranked_.push_back({rank(item), item.id, weight[i]});
    }
    return ranked_;
}

template <class Replace> void Candidates::replace(Replace &&replace) {
    const std::span<const float> weight = weights();
    next_items_.clear();
    for (size_t i = 0; i < size(); ++i)
        if (const Candidate item = at(i); item.logit > -INFINITY)
            next_items_.push_back({replace(item, weight[i]), item.id});
    factor_ = 1.0;
    set_items(false);
}

template <class Keep> void Candidates::filter(Keep &&keep) {
    const std::span<const float> weight = weights();
    next_items_.clear();
    for (size_t i = 0; i < size(); ++i) {
        const Candidate item = at(i);
        if (item.logit > -INFINITY && keep(item, weight[i])) next_items_.push_back(item);
    }
    set_items(is_sorted());
}

} // namespace quire
