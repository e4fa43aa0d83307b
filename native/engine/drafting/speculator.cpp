#include "engine/drafting/speculator.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace quire {
namespace {

// Prior rates of the kinds, and their weight in tokens.
constexpr std::array<double, n_draft_kinds> expected_rates = {0.5, 0.65, 0.8, 0.9};
constexpr double weight_of_expected = 8, weight_of_kind = 3;
// Per judged token, and per step without a draft: who was bad gets another chance after some hundred steps.
constexpr double sequence_memory = 0.97, kind_memory = 0.995, idle_memory = 0.99;
constexpr double token_s_memory = 0.995; // per step in which proposing seemed too slow
constexpr double answer_weight = 0.1;    // in the mean length
constexpr int most_since_without = 64, most_refused = 64;

void check_config(const SpeculationConfig &config) {
    if (config.draft_max < 1 || config.draft_max > max_draft_depth)
        throw RequestError("speculation", cat("draft_max is ", config.draft_max, ": expected 1 to ", max_draft_depth));
    if (config.draft_min < 0 || config.draft_min > config.draft_max)
        throw RequestError("speculation", cat("draft_min is ", config.draft_min, ": expected 0 to draft_max (",
                                              config.draft_max, ")"));
}

} // namespace

Speculator::Speculator(std::vector<std::shared_ptr<Drafter>> drafters, SpeculationConfig config) : config_(config) {
    check_config(config);
    for (auto &drafter : drafters) {
        Entry entry{std::move(drafter), {}, 0, {}};
        entry.stats.name = entry.drafter->name();
        const int most = entry.drafter->is_certain() ? max_draft_depth : config.draft_max;
        entry.stats.drafted_at.resize(static_cast<size_t>(most));
        entry.stats.accepted_at.resize(static_cast<size_t>(most));
        if (has(entry.stats.name))
            throw RequestError("speculation", cat("two drafters are called '", entry.stats.name, "'"));
        drafters_.push_back(std::move(entry));
    }
}

bool Speculator::has(const std::string &drafter) const {
    return std::ranges::any_of(drafters_, [&](const Entry &entry) { return entry.stats.name == drafter; });
}

DrafterSet Speculator::certain() const {
    DrafterSet certain = 0;
    for (size_t i = 0; i < drafters_.size(); ++i)
        if (drafters_[i].drafter->is_certain()) certain |= DrafterSet{1} << i;
    return certain;
}

DrafterSet Speculator::set(const std::string &name) const {
    if (name == "auto") return ~DrafterSet{0};
    if (name == "off") return 0;
    std::string names = "auto, off";
    for (size_t i = 0; i < drafters_.size(); ++i) {
        if (drafters_[i].stats.name == name) return DrafterSet{1} << i;
        names += ", " + drafters_[i].stats.name;
    }
    throw RequestError("speculation", cat("speculation is '", name.substr(0, 40), "': expected one of ", names));
}

Speculator::State &Speculator::state(SequenceId sequence) {
    State &state = sequences_[sequence];
    state.rates.resize(drafters_.size());
    return state;
}

bool Speculator::is_asked(size_t drafter, DrafterSet drafters) const {
    return drafters_[drafter].stats.failure.empty() && ((drafters >> drafter) & 1) != 0;
}

void Speculator::require_features(int n) const {
    for (const Entry &entry : drafters_)
        if (const int read = entry.drafter->n_features(); read > 0 && read != n)
            throw ShapeError("speculation", cat("drafter ", entry.stats.name, " reads ", read,
                                                " features of a row: the model has ", n));
}

bool Speculator::reads_features(DrafterSet drafters) const {
    for (size_t i = 0; i < drafters_.size(); ++i)
        if (drafters_[i].drafter->n_features() > 0 && is_asked(i, drafters)) return true;
    return false;
}

void Speculator::see(SequenceId sequence, DrafterSet drafters, int64_t first, std::span<const float> features) {
    state(sequence); // so that it is forgotten
    for (size_t i = 0; i < drafters_.size(); ++i)
        if (drafters_[i].drafter->n_features() > 0 && is_asked(i, drafters))
            drafters_[i].drafter->see(sequence, first, features);
}

double Speculator::rate(const Wish &wish, size_t drafter, int kind) {
    const auto i = static_cast<size_t>(kind);
    const double of_kind = drafters_[drafter].rates[i].given(expected_rates[i], weight_of_expected);
    return std::min(state(wish.sequence).rates[drafter].given(of_kind, weight_of_kind), highest_rate);
}

// True if this step goes without drafts, to learn the cost of such a step.
bool Speculator::measures_without() {
    const bool measures = n_since_without_ >= most_since_without && config_.draft_min == 0;
    n_since_without_ = measures ? 0 : n_since_without_ + 1;
    return measures;
}

void Speculator::propose(std::vector<Wish> &wishes, int n_tokens, int n_rows) {
    if ((!cost_.knows(n_rows) && config_.draft_min == 0) || measures_without()) return;
    for (Wish &wish : wishes) state(wish.sequence).n_certain = 0;
    int n_certain = 0;
    for (size_t i = 0; i < drafters_.size(); ++i) {
        if (drafters_[i].drafter->is_certain()) {
            ask_certain(i, wishes);
            for (const Wish &wish : wishes) n_certain += static_cast<int>(wish.certain.size());
            continue;
        }
        std::vector<Wish *> asked;
        for (Wish &wish : wishes)
            if (is_asked(i, wish.drafters) && wish.proposal.empty() && wish.most > 0) asked.push_back(&wish);
        if (!asked.empty()) ask(i, asked, n_tokens + n_certain, n_rows + n_certain);
    }
    cut(wishes, n_tokens, n_rows);
    if (std::ranges::all_of(wishes, [](const Wish &wish) { return wish.proposal.empty(); })) n_since_without_ = 0;
}

// Tokens known to be forbidden are not computed; the next drafter may know better.
bool Speculator::cut_forbidden(Wish &wish) {
    for (size_t i = 0; i < wish.proposal.size(); ++i) {
        const int32_t token = wish.proposal[i];
        const size_t at = wish.certain.size() + i, n_forced = wish.forced.size();
        if (at > n_forced || (at == n_forced && !wish.mask)) return false; // its mask is not known
        if (at < n_forced ? token == wish.forced[at] : wish.mask->allows(token)) continue;
        wish.proposal.resize(i);
        return i == 0;
    }
    return false;
}

// Runs before the other drafters: their proposals follow the tokens that are certain.
void Speculator::ask_certain(size_t drafter, std::vector<Wish> &wishes) {
    for (Wish &wish : wishes) {
        if (((wish.drafters >> drafter) & 1) == 0 || wish.forced.empty()) continue;
        const int most = wish.most;
        wish.most = std::min(wish.room, max_draft_depth);
        DraftWish *const asked = &wish;
        drafters_[drafter].drafter->propose({&asked, 1});
        wish.certain = std::exchange(wish.proposal, {});
        wish.text.assign(wish.tokens.begin(), wish.tokens.end());
        wish.text.insert(wish.text.end(), wish.certain.begin(), wish.certain.end());
        wish.tokens = wish.text;
        wish.most = std::min(most, wish.room - static_cast<int>(wish.certain.size()));
        State &state = this->state(wish.sequence);
        state.certain_drafter = drafter;
        state.n_certain = static_cast<int>(wish.certain.size());
    }
}

// Seconds that a sequence's drafts are likely to save until its answer ends.  How long that is, is known of other
// answers, and of what it has already.
double Speculator::worth_s(const Wish &wish, double advantage, int n_tokens, int n_rows) const {
    const auto n_answer = static_cast<double>(wish.tokens.size()) - static_cast<double>(wish.n_prompt);
    const auto n_possible = static_cast<double>(wish.max_tokens) - static_cast<double>(wish.tokens.size());
    const double n_left = std::min(n_possible, std::max(answer_tokens_ - n_answer, n_answer));
    return n_left * cost_.seconds(n_rows) / n_tokens * (1 - 1 / advantage);
}

void Speculator::ask(size_t drafter, std::vector<Wish *> &wishes, int n_tokens, int n_rows) {
    Entry &entry = drafters_[drafter];
    int depth = config_.draft_max;
    if (entry.drafter->costs_time() && config_.draft_min < config_.draft_max) {
        std::vector<double> rates;
        for (const Wish *wish : wishes) rates.push_back(rate(*wish, drafter, model_draft_kind));
        const DepthChoice choice = choose_depth(rates, config_.draft_max, n_tokens, n_rows, cost_, entry.token_s);
        depth = std::max(config_.draft_min, choice.depth);
        const auto is_unworthy = [&](const Wish *wish) {
            const double reading_s = entry.drafter->reading_s(*wish);
            return reading_s > 0 && reading_s > worth_s(*wish, choice.advantage, n_tokens, n_rows);
        };
        if (config_.draft_min == 0 && depth > 0) std::erase_if(wishes, is_unworthy);
        if (wishes.empty()) return;
    }
    if (depth == 0) {
        entry.token_s *= token_s_memory;
        for (Wish *wish : wishes) state(wish->sequence).rates[drafter].fade(idle_memory);
        for (DraftRate &rate : entry.rates) rate.fade(idle_memory);
        return;
    }
    std::vector<DraftWish *> asked;
    for (Wish *wish : wishes) {
        wish->most = std::min(wish->most, depth);
        asked.push_back(wish);
    }
    const double started_s = now_s();
    try {
        entry.drafter->propose(asked);
    } catch (const std::exception &error) { // nothing is lost but speed
        entry.stats.failure = error.what();
        for (Wish *wish : wishes) wish->proposal.clear();
        return;
    }
    const double seconds = now_s() - started_s;
    const double drafting_s = std::max(0.0, seconds - entry.drafter->read_s());
    entry.stats.seconds += seconds;
    size_t longest = 0;
    for (Wish *wish : wishes) {
        longest = std::max(longest, wish->proposal.size());
        State &state = this->state(wish->sequence);
        if (cut_forbidden(*wish)) { // that is as wrong as another token
            state.rates[drafter].judge(false, sequence_memory);
            entry.rates[static_cast<size_t>(wish->kind)].judge(false, kind_memory);
        }
        if (wish->proposal.empty()) continue;
        state.drafter = drafter;
        state.kind = wish->kind;
    }
    if (entry.drafter->costs_time() && longest > 0) {
        const double token_s = drafting_s / static_cast<double>(longest);
        entry.token_s = entry.token_s == 0 ? token_s : 0.9 * entry.token_s + 0.1 * token_s;
    }
}

// The cost of a row more is known only from steps that have it: now and then one is computed although it seemed too
// dear.
void Speculator::try_one_more(std::span<DraftOffer> offers) {
    const auto offer = std::ranges::find_if(offers, [](const DraftOffer &o) { return o.taken < o.n_tokens; });
    n_refused_ = offer == offers.end() ? 0 : n_refused_ + 1;
    if (n_refused_ < most_refused) return;
    n_refused_ = 0;
    ++offer->taken;
}

void Speculator::cut(std::vector<Wish> &wishes, int n_tokens, int n_rows) {
    std::vector<DraftOffer> offers;
    for (Wish &wish : wishes) {
        const State &state = this->state(wish.sequence);
        const double rate = wish.proposal.empty() ? 0 : this->rate(wish, state.drafter, state.kind);
        wish.proposal.insert(wish.proposal.begin(), wish.certain.begin(), wish.certain.end());
        offers.push_back({static_cast<int>(wish.proposal.size()), rate, config_.draft_min, state.n_certain});
    }
    choose_depths(offers, n_tokens, n_rows, cost_);
    try_one_more(offers);
    for (size_t i = 0; i < wishes.size(); ++i) {
        const DraftOffer &offer = offers[i];
        if (offer.taken <= offer.n_certain && offer.n_tokens > offer.n_certain) {
            State &state = this->state(wishes[i].sequence);
            state.rates[state.drafter].fade(idle_memory);
            drafters_[state.drafter].rates[static_cast<size_t>(state.kind)].fade(idle_memory);
        }
        wishes[i].proposal.resize(static_cast<size_t>(offer.taken));
    }
}

std::span<const int32_t> Speculator::begin(SequenceId sequence, std::span<const int32_t> forced, int64_t most) {
    const auto certain =
        std::ranges::find_if(drafters_, [](const Entry &entry) { return entry.drafter->is_certain(); });
    if (certain == drafters_.end()) return {};
    forced = forced.first(std::min({forced.size(), static_cast<size_t>(most), static_cast<size_t>(max_draft_depth)}));
    State &state = this->state(sequence);
    state.certain_drafter = static_cast<size_t>(certain - drafters_.begin());
    state.n_certain = static_cast<int>(forced.size());
    return forced;
}

void Speculator::planned(SequenceId sequence, int n_drafted) {
    State &state = sequences_.at(sequence);
    state.position = 0;
    state.n_certain = std::min(state.n_certain, n_drafted);
    const auto count = [&](size_t drafter, int n) {
        if (n == 0) return;
        DrafterStats &stats = drafters_[drafter].stats;
        ++stats.n_drafts;
        stats.n_drafted += n;
        for (int i = 0; i < n; ++i) ++stats.drafted_at[static_cast<size_t>(i)];
    };
    count(state.certain_drafter, state.n_certain);
    count(state.drafter, n_drafted - state.n_certain);
}

void Speculator::judge(SequenceId sequence, bool is_right) {
    State &state = sequences_.at(sequence);
    const int position = state.position++;
    const bool was_certain = position < state.n_certain;
    Entry &entry = drafters_[was_certain ? state.certain_drafter : state.drafter];
    entry.stats.n_accepted += is_right;
    entry.stats.accepted_at[static_cast<size_t>(was_certain ? position : position - state.n_certain)] += is_right;
    if (was_certain) return;
    state.rates[state.drafter].judge(is_right, sequence_memory);
    entry.rates[static_cast<size_t>(state.kind)].judge(is_right, kind_memory);
}

void Speculator::forget(SequenceId sequence, std::span<const int32_t> answer) {
    if (sequences_.erase(sequence) == 0) return;
    answer_tokens_ += answer_weight * (static_cast<double>(answer.size()) - answer_tokens_);
    for (Entry &entry : drafters_) entry.drafter->forget(sequence, answer);
}

void Speculator::close() {
    for (Entry &entry : drafters_) entry.drafter->close();
}

std::vector<DrafterStats> Speculator::stats() const {
    std::vector<DrafterStats> result;
    for (const Entry &entry : drafters_) result.push_back(entry.stats);
    return result;
}

} // namespace quire
