#include "engine/sampling/candidates.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "engine/sampling/exponential.h"
#include "engine/sampling/row_scan.h"

namespace quire {
namespace {

[[noreturn]] void refuse_row(std::span<const float> logits) {
    for (size_t i = 0; i < logits.size(); ++i)
        if (!(logits[i] <= largest_logit))
            throw RequestError("sampling",
                               cat("token ", i, " has the logit ", logits[i], ": expected a finite number or -inf"));
    throw InternalError("sampling", "a row was refused without a reason");
}

// f(weight) summed in blocks of single precision, blocks in double.
template <class F> double sum_in_blocks(size_t n, F &&f) {
    double total = 0.0;
    for (size_t begin = 0; begin < n; begin += scan_block) {
        const size_t end = std::min(begin + scan_block, n);
        float lanes[scan_lanes] = {};
        size_t i = begin;
        for (; i + scan_lanes <= end; i += scan_lanes)
            for (size_t j = 0; j < scan_lanes; ++j) lanes[j] += f(i + j);
        for (; i < end; ++i) lanes[0] += f(i);
        double sum = 0.0;
        for (float lane : lanes) sum += lane;
        total += sum;
    }
    return total;
}

} // namespace

float checked_max(std::span<const float> logits) {
    float largest;
    if (!find_largest(logits, largest)) refuse_row(logits);
    return largest;
}

void select_top(std::span<const float> logits, std::span<const float> maxima, size_t k, std::vector<Candidate> &out) {
    out.clear();
    const size_t capacity = std::max<size_t>(2 * k, 256);
    float threshold = -INFINITY; // the k-th best so far; ids ascend, so an equal logit later is less likely
    const auto cut = [&] {
        if (out.size() <= k) return;
        std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(k), out.end(), likelier);
        out.resize(k);
        threshold = out[0].logit;
        for (const Candidate &item : out) threshold = std::min(threshold, item.logit);
    };
    const auto offer = [&](size_t i) {
        if (!(logits[i] > threshold)) return;
        out.push_back({logits[i], static_cast<int32_t>(i)});
        if (out.size() == capacity) cut();
    };
    for (size_t i = 0; (i = find_above(logits, maxima, i, threshold)) < logits.size(); i += scan_lanes)
        for (size_t j = i; j < std::min(i + scan_lanes, logits.size()); ++j) offer(j);
    cut();
    std::sort(out.begin(), out.end(), likelier);
}

void Candidates::start(const LogitRow &row) {
    row_ = row.logits;
    maxima_ = row.maxima;
    changes_.clear();
    dense_ = true;
    sorted_ = owned_ = false;
    factor_ = 1.0;
    find_max();
}

void Candidates::give_back() {
    for (size_t i = changes_.size(); i-- > 0;) {
        const Change &change = changes_[i];
        const auto id = static_cast<size_t>(change.id);
        row_[id] = change.logit;
        if (!maxima_.empty()) maxima_[id / logit_strip] = change.maximum;
    }
    changes_.clear();
}

void Candidates::set(int32_t id, float logit) {
    const auto place = static_cast<size_t>(id), strip = place / logit_strip;
    changes_.push_back({id, row_[place], maxima_.empty() ? 0.0F : maxima_[strip]});
    const float before = std::exchange(row_[place], logit);
    if (maxima_.empty()) return;
    float &maximum = maxima_[strip];
    if (logit >= maximum) {
        maximum = logit;
    } else if (before == maximum) {
        const auto first = row_.begin() + static_cast<ptrdiff_t>(strip * logit_strip);
        maximum = *std::max_element(
            first, row_.begin() + static_cast<ptrdiff_t>(std::min((strip + 1) * logit_strip, row_.size())));
    }
}

void Candidates::require_some() const {
    if (max_ == -INFINITY) throw RequestError("sampling", "no token is left to draw: all are excluded");
}

void Candidates::restrict_to(const TokenMask &mask) {
    if (mask.count() * 8 < row_.size()) { // few: a list is quicker
        next_items_.clear();
        mask.for_each([&](int32_t id) {
            if (row_[id] > -INFINITY) next_items_.push_back({row_[id], id});
        });
        return set_items(false);
    }
    float *row = own_row();
    const std::span<const uint32_t> words = mask.words();
    for (size_t i = 0; i < row_.size(); ++i)
        if (!((words[i / 32] >> (i % 32)) & 1)) row[i] = -INFINITY;
    find_max();
}

void Candidates::restrict_to(std::span<const int32_t> ids) {
    if (!dense_) {
        std::erase_if(items_,
                      [&](const Candidate &item) { return !std::binary_search(ids.begin(), ids.end(), item.id); });
        return find_max();
    }
    next_items_.clear();
    for (int32_t id : ids)
        if (row_[id] > -INFINITY) next_items_.push_back({row_[id], id});
    set_items(false);
}

bool Candidates::are_among(std::span<const int32_t> ids) const {
    for (size_t i = 0; i < size(); ++i)
        if (const Candidate item = at(i);
            item.logit > -INFINITY && !std::binary_search(ids.begin(), ids.end(), item.id))
            return false;
    return true;
}

void Candidates::exclude(std::span<const int32_t> ids) {
    if (ids.empty()) return;
    if (dense_) {
        for (int32_t id : ids) set(id, -INFINITY);
    } else {
        std::erase_if(items_,
                      [&](const Candidate &item) { return std::binary_search(ids.begin(), ids.end(), item.id); });
    }
    find_max();
}

void Candidates::divide_by(double temperature) {
    // Never so small that the likeliest overflows: below that only the likeliest have weight anyway.
    const double limit = 1e30 / std::max(1.0f, std::fabs(max_));
    factor_ = std::clamp(factor_ / temperature, 1e-30, limit);
    weights_valid_ = false;
}

void Candidates::keep_within(double distance) {
    const double lowest = lowest_within(distance);
    next_items_.clear();
    if (dense_) {
        // No float below this one passes; excluded ones never do.
        const float bound = std::max(static_cast<float>(lowest), -largest_logit);
        const auto offer = [&](size_t i) {
            if (row_[i] >= bound && row_[i] >= lowest) next_items_.push_back({row_[i], static_cast<int32_t>(i)});
        };
        const float below = std::nextafter(bound, -INFINITY);
        for (size_t i = 0; (i = find_above(row_, maxima_, i, below)) < row_.size(); i += scan_lanes)
            for (size_t j = i; j < std::min(i + scan_lanes, row_.size()); ++j) offer(j);
    } else {
        for (const Candidate &item : items_)
            if (item.logit >= lowest) next_items_.push_back(item);
    }
    set_items(is_sorted());
}

std::span<const Candidate> Candidates::likeliest(size_t k) {
    if (is_sorted()) return std::span<const Candidate>(items_).first(std::min(k, items_.size()));
    if (dense_ && k == 1) {
        // The first of equal ones, which lies in the first lanes with a number above the next smaller one.
        const size_t lanes = find_above(row_, maxima_, 0, std::nextafter(max_, -INFINITY));
        const auto found = std::find(row_.begin() + static_cast<ptrdiff_t>(lanes), row_.end(), max_);
        next_items_.assign(1, {max_, static_cast<int32_t>(found - row_.begin())});
    } else if (dense_) {
        select_top(row_, maxima_, k, next_items_);
    } else {
        next_items_ = items_;
        k = std::min(k, items_.size());
        const auto end = next_items_.begin() + static_cast<ptrdiff_t>(k);
        std::nth_element(next_items_.begin(), end, next_items_.end(), likelier);
        next_items_.resize(k);
        std::sort(next_items_.begin(), next_items_.end(), likelier);
    }
    return next_items_;
}

void Candidates::keep_top(size_t k) {
    if (is_sorted()) return keep_first(k);
    likeliest(k);
    set_items(true);
}

void Candidates::keep_first(size_t n) {
    if (n >= items_.size()) return;
    items_.resize(n);
    weights_valid_ = false;
    find_max();
}

void Candidates::sort() {
    if (is_sorted()) return;
    keep_top(size());
}

std::span<const float> Candidates::weights() {
    if (weights_valid_) return {weights_.data(), size()};
    const size_t n = size();
    weights_.resize(std::max(n, weights_.size()));
    block_totals_.clear();
    const float max = max_, factor = static_cast<float>(factor_);
    float *weights = weights_.data();
    if (dense_) {
        exponentials(row_, max, factor, weights);
    } else {
        for (size_t i = 0; i < n; ++i) weights[i] = exp_nonpositive((items_[i].logit - max) * factor);
    }
    total_ = sum_at_least({weights, n}, 0.0F, &block_totals_);
    weights_valid_ = true;
    return {weights, n};
}

double Candidates::total() {
    weights();
    return total_;
}

double Candidates::weight_of_likely(double distance) {
    return sum_at_least(weights(), static_cast<float>(std::exp(-distance)), nullptr);
}

double Candidates::entropy() {
    // -sum(p log p) with p = w / total and log w = relative(logit).
    const float *weight = weights().data();
    const float max = max_, factor = static_cast<float>(factor_);
    double sum = 0.0;
    if (dense_) {
        const float *row = row_.data();
        sum = sum_in_blocks(size(),
                            [=](size_t i) { return weight[i] > 0.0f ? weight[i] * ((row[i] - max) * factor) : 0.0f; });
    } else {
        const Candidate *items = items_.data();
        sum = sum_in_blocks(
            size(), [=](size_t i) { return weight[i] > 0.0f ? weight[i] * ((items[i].logit - max) * factor) : 0.0f; });
    }
    return std::max(0.0, std::log(total_) - sum / total_);
}

size_t Candidates::count() const {
    if (!dense_) return items_.size();
    return row_.size() - static_cast<size_t>(std::count(row_.begin(), row_.end(), -INFINITY));
}

double Candidates::standard_deviation() const {
    double n = 0.0, sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < size(); ++i) {
        const float logit = at(i).logit;
        if (logit == -INFINITY) continue;
        const double distance = static_cast<double>(logit) - max_; // from the maximum: no cancellation of large means
        n += 1.0;
        sum += distance;
        squares += distance * distance;
    }
    return std::sqrt(std::max(0.0, squares / n - (sum / n) * (sum / n)));
}

size_t Candidates::draw(double u) {
    const std::span<const float> weight = weights();
    double rest = u * total_;
    size_t block = 0;
    while (block + 1 < block_totals_.size() && rest >= block_totals_[block]) rest -= block_totals_[block++];
    for (size_t i = block * scan_block; i < weight.size(); ++i) {
        rest -= weight[i];
        if (rest < 0.0) return i;
    }
    // Rounding left a rest: the last with any weight.
    size_t last = weight.size() - 1;
    while (last > 0 && weight[last] <= 0.0f) --last;
    return last;
}

float *Candidates::own_row() {
    if (!owned_) {
        own_.assign(row_.begin(), row_.end());
        give_back();
        row_ = own_;
        maxima_ = {};
        owned_ = true;
    }
    return own_.data();
}

void Candidates::set_items(bool sorted) {
    items_.swap(next_items_);
    dense_ = false;
    sorted_ = sorted;
    find_max();
}

void Candidates::find_max() {
    weights_valid_ = false;
    if (dense_) {
        if (!maxima_.empty() && find_largest(maxima_, max_)) return;
        maxima_ = {};
        max_ = checked_max(row_);
        return;
    }
    max_ = -INFINITY;
    for (const Candidate &item : items_) max_ = std::max(max_, item.logit);
}

} // namespace quire
