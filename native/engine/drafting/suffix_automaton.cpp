#include "engine/drafting/suffix_automaton.h"

#include <limits>

#include "core/error.h"

namespace quire {

SuffixAutomaton::SuffixAutomaton() : index_(64, none) { add_state({0, none, 0}); }

int32_t SuffixAutomaton::add_state(const State &state) {
    states_.push_back(state);
    return static_cast<int32_t>(states_.size()) - 1;
}

// Where the edge is, or would be.
size_t SuffixAutomaton::place(int32_t from, int32_t token) const {
    const size_t mask = index_.size() - 1;
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32) | static_cast<uint32_t>(token);
    size_t at = static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (index_[at] != none) {
        const Edge &edge = edges_[static_cast<size_t>(index_[at])];
        if (edge.from == from && edge.token == token) break;
        at = (at + 1) & mask;
    }
    return at;
}

SuffixAutomaton::Edge *SuffixAutomaton::find(int32_t from, int32_t token) {
    const int32_t edge = index_[place(from, token)];
    return edge == none ? nullptr : &edges_[static_cast<size_t>(edge)];
}

void SuffixAutomaton::add_edge(int32_t from, int32_t token, int32_t to) {
    if (2 * (edges_.size() + 1) > index_.size()) grow();
    const auto edge = static_cast<int32_t>(edges_.size());
    index_[place(from, token)] = edge;
    State &state = states_[static_cast<size_t>(from)];
    edges_.push_back({from, token, to, state.first_edge});
    state.first_edge = edge;
}

void SuffixAutomaton::grow() {
    index_.assign(2 * index_.size(), none);
    for (size_t i = 0; i < edges_.size(); ++i) index_[place(edges_[i].from, edges_[i].token)] = static_cast<int32_t>(i);
}

// A state for the strings of `to` that end in the edge's and have more places than the others of `to`.
int32_t SuffixAutomaton::split(int32_t from, int32_t token, int32_t to) {
    const State old = states_[static_cast<size_t>(to)];
    const int32_t part = add_state({states_[static_cast<size_t>(from)].length + 1, old.link, old.next});
    for (int32_t edge = old.first_edge; edge != none; edge = edges_[static_cast<size_t>(edge)].next_edge) {
        const Edge copied = edges_[static_cast<size_t>(edge)];
        add_edge(part, copied.token, copied.to);
    }
    for (int32_t state = from; state != none; state = states_[static_cast<size_t>(state)].link) {
        Edge *edge = find(state, token);
        if (edge == nullptr || edge->to != to) break;
        edge->to = part;
    }
    states_[static_cast<size_t>(to)].link = part;
    return part;
}

// A state may have been split since: its shorter strings belong to the one that it links to.
void SuffixAutomaton::settle(Cursor &cursor) const {
    for (int32_t link = states_[static_cast<size_t>(cursor.state)].link;
         link != none && cursor.length <= states_[static_cast<size_t>(link)].length;
         link = states_[static_cast<size_t>(cursor.state)].link)
        cursor.state = link;
}

void SuffixAutomaton::follow(Cursor &cursor, int32_t token) const {
    settle(cursor);
    for (;;) {
        if (const int32_t edge = index_[place(cursor.state, token)]; edge != none) {
            cursor = {edges_[static_cast<size_t>(edge)].to, cursor.length + 1};
            return;
        }
        if (cursor.state == 0) return;
        cursor.state = states_[static_cast<size_t>(cursor.state)].link;
        cursor.length = states_[static_cast<size_t>(cursor.state)].length;
    }
}

SuffixAutomaton::Match SuffixAutomaton::match(const Cursor &cursor) const {
    Cursor settled = cursor;
    settle(settled);
    return {settled.length, states_[static_cast<size_t>(settled.state)].next};
}

void SuffixAutomaton::append(int32_t token) {
    if (text_.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max() / 4))
        throw CapacityError("suffix_automaton", cat("the text is full: ", text_.size(), " tokens"));
    text_.push_back(token);
    const auto next = static_cast<int32_t>(text_.size());
    const int32_t whole = add_state({next, 0, next});
    int32_t state = last_;
    while (state != none && find(state, token) == nullptr) {
        add_edge(state, token, whole);
        state = states_[static_cast<size_t>(state)].link;
    }
    if (state != none) {
        const int32_t to = find(state, token)->to;
        const bool exact = states_[static_cast<size_t>(state)].length + 1 == states_[static_cast<size_t>(to)].length;
        states_[static_cast<size_t>(whole)].link = exact ? to : split(state, token, to);
    }
    last_ = whole;
    State &repeated = states_[static_cast<size_t>(states_[static_cast<size_t>(whole)].link)];
    match_ = {repeated.length, repeated.next};
    repeated.next = next;
}

} // namespace quire
