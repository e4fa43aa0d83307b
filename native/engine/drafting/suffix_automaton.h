// A growing text of tokens, and where its end occurred before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

// The suffix automaton of Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton
// recognizing the subwords of a text" (1985), built as the text grows: constant time per token on average, at most
// two states and three edges each.
class SuffixAutomaton {
  public:
    // The longest end of the text that also ends somewhere before: its length (0: none), and the position of the
    // token that followed there.  Of several such places one of the latest.
    struct Match {
        int32_t length = 0;
        int32_t next = 0;
    };

    // Where the end of another text stands in this one: its longest end that occurs here.
    struct Cursor {
        int32_t state = 0, length = 0;
    };

    SuffixAutomaton();
    void append(int32_t token);
    const Match &match() const { return match_; }
    // The other text has one more token.  A cursor stays valid while this text grows.
    void follow(Cursor &cursor, int32_t token) const;
    Match match(const Cursor &cursor) const;
    const std::vector<int32_t> &text() const { return text_; }
    size_t n_states() const { return states_.size(); }

  private:
    static constexpr int32_t none = -1;
    struct State {
        int32_t length, link; // length of the longest string; link to the longest end with other places
        int32_t next;         // position after a place where it ends
        int32_t first_edge = none;
    };
    struct Edge {
        int32_t from, token, to, next_edge;
    };
    int32_t add_state(const State &state);
    void add_edge(int32_t from, int32_t token, int32_t to);
    Edge *find(int32_t from, int32_t token);
    void settle(Cursor &cursor) const;
    int32_t split(int32_t from, int32_t token, int32_t to);
    size_t place(int32_t from, int32_t token) const;
    void grow();

    std::vector<int32_t> text_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> index_; // [power of two] of edges_, by state and token; `none` where free
    int32_t last_ = 0;
    Match match_;
};

} // namespace quire
