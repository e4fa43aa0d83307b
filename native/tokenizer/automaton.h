// A regular expression compiled to a table of state transitions.  A state is the ordered list of the program's live
// places, so the match is the one that a backtracking machine finds first, in linear time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "expression.h"
#include "unicode.h"

namespace quire::tokenizer {

// Maps a character to its column.  Characters share a column if no set of the program distinguishes them.
class ColumnTable {
  public:
    explicit ColumnTable(const Program &program) {
        std::vector<uint32_t> bounds{0};
        for (const CharacterSet &set : program.sets) {
            for (const auto &[first, last] : set.ranges()) bounds.push_back(first), bounds.push_back(last + 1);
        }
        std::sort(bounds.begin(), bounds.end());
        bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
        if (bounds.back() <= CharacterSet::last_code) bounds.push_back(CharacterSet::last_code + 1);
        index_.resize((CharacterSet::last_code + 1) / 256);
        std::vector<uint8_t> block;
        for (size_t i = 0; i + 1 < bounds.size(); ++i) {
            const uint8_t column = column_of(program, [&](const auto &set) { return set.contains(bounds[i]); });
            fill(bounds[i], bounds[i + 1], column, block);
        }
        invalid = column_of(program, [](const auto &set) { return set.has_invalid; });
        for (size_t i = 0; i < 128; ++i) ascii_[i] = (*this)[static_cast<uint32_t>(i)];
    }

    uint8_t invalid = 0; // the column of bytes that are not UTF-8

    size_t size() const { return members_.size(); }
    // True if the set contains the characters of the column.
    bool has(size_t column, size_t set) const { return members_[column][set]; }
    uint8_t operator[](uint32_t code) const { return blocks_[index_[code >> 8] + (code & 0xff)]; }
    uint8_t ascii(uint8_t byte) const { return ascii_[byte]; }

  private:
    template <class Has> uint8_t column_of(const Program &program, Has &&has) {
        std::vector<bool> member(program.sets.size());
        for (size_t set = 0; set < member.size(); ++set) member[set] = has(program.sets[set]);
        const auto [place, is_new] = numbers_.emplace(member, static_cast<uint8_t>(members_.size()));
        if (is_new) members_.push_back(member);
        if (members_.size() > 250) throw std::invalid_argument("distinguishes too many kinds of characters");
        return place->second;
    }

    // Blocks with a single column are shared.
    void fill(uint32_t first, uint32_t end, uint8_t column, std::vector<uint8_t> &block) {
        while (first < end) {
            if (block.empty() && (first & 0xff) == 0 && end - first >= 256) {
                const auto [place, is_new] = uniform_.emplace(column, static_cast<uint32_t>(blocks_.size()));
                if (is_new) blocks_.insert(blocks_.end(), 256, column);
                index_[first >> 8] = place->second;
                first += 256;
                continue;
            }
            const uint32_t n = std::min<uint32_t>(end - first, 256 - (first & 0xff));
            block.insert(block.end(), n, column);
            first += n;
            if (block.size() < 256) continue;
            index_[(first >> 8) - 1] = static_cast<uint32_t>(blocks_.size());
            blocks_.insert(blocks_.end(), block.begin(), block.end());
            block.clear();
        }
    }

    std::vector<std::vector<bool>> members_;
    std::map<std::vector<bool>, uint8_t> numbers_;
    std::map<uint8_t, uint32_t> uniform_;
    std::vector<uint32_t> index_;
    std::vector<uint8_t> blocks_;
    std::array<uint8_t, 128> ascii_{};
};

class Automaton {
  public:
    // Throws std::invalid_argument if the expression is malformed, unsupported, or can match the empty string.
    explicit Automaton(std::string_view expression) : Automaton(ExpressionParser::parse(expression)) {}

    // Return the end of the match that starts at `at`, or `at` if there is none.
    size_t match(const char *text, size_t at, size_t end) const {
        size_t found = at;
        uint32_t state = start_;
        while (at < end) {
            const auto lead = static_cast<uint8_t>(text[at]);
            uint32_t column = 0, n_bytes = 1;
            if (lead < 0x80) {
                column = columns_.ascii(lead);
            } else {
                const Code c = code_at(text, at, end);
                column = c.code == not_a_code ? columns_.invalid : columns_[c.code];
                n_bytes = c.n_bytes;
            }
            const uint32_t entry = table_[state + column];
            if (entry & 1) found = at;
            state = entry >> 1;
            if (state == dead) return found;
            at += n_bytes;
        }
        return table_[state + end_column_] & 1 ? end : found;
    }

    // Return the next place to try if nothing matches at `at`: after one character, or after the run that the
    // expression must start with, as it would fail everywhere in it.
    size_t after_failure(const char *text, size_t at, size_t end) const {
        do {
            const Code c = code_at(text, at, end);
            const size_t column = c.code == not_a_code ? columns_.invalid : columns_[c.code];
            at += c.n_bytes;
            if (leading_run_.empty() || !leading_run_[column]) break;
        } while (at < end);
        return at;
    }

  private:
    static constexpr uint32_t dead = 0;
    static constexpr size_t most_states = 4096;
    using Places = std::vector<uint32_t>;

    explicit Automaton(const Program &program)
        : columns_(program), end_column_(columns_.size()), width_(columns_.size() + 1) {
        check_possessive(program);
        state_of({});
        start_ = state_of({program.start});
        for (size_t number = 0; number < states_.size(); ++number) {
            const Places places = states_[number]; // a copy: states_ grows
            for (size_t column = 0; column < width_; ++column) {
                const uint32_t entry = step(program, places, column);
                if (number * width_ == start_ && (entry & 1)) throw std::invalid_argument("can match the empty string");
                table_[number * width_ + column] = entry;
            }
        }
        find_leading_run(program);
        states_.clear();
        numbers_.clear();
    }

    uint32_t state_of(const Places &places) {
        const auto [place, is_new] = numbers_.emplace(places, static_cast<uint32_t>(states_.size()));
        if (is_new) {
            if (states_.size() >= most_states) throw std::invalid_argument("has too many states");
            states_.push_back(places);
            table_.resize(states_.size() * width_);
        }
        return static_cast<uint32_t>(place->second * width_);
    }

    bool has(size_t column, uint32_t set) const { return column != end_column_ && columns_.has(column, set); }

    // The state after a character of `column`, and whether the text before that character is a match.
    uint32_t step(const Program &program, const Places &places, size_t column) {
        Places next;
        std::vector<bool> seen(program.code.size()), listed(program.code.size());
        bool matches = false;
        for (const uint32_t place : places) {
            if (matches) break; // the other places have lower precedence
            follow(program, place, column, seen, [&](const Instruction &at) {
                if (matches) return;
                if (at.operation == Operation::match) {
                    matches = true;
                } else if (has(column, at.x) && !listed[at.y]) {
                    listed[at.y] = true;
                    next.push_back(at.y);
                }
            });
        }
        return state_of(next) << 1 | (matches ? 1 : 0);
    }

    // Visit the `take` and `match` instructions that `place` reaches before a character of `column`, in order.
    template <class Sink>
    void follow(const Program &program, uint32_t place, size_t column, std::vector<bool> &seen, Sink &&sink) const {
        Places pending{place};
        while (!pending.empty()) {
            const uint32_t at = pending.back();
            pending.pop_back();
            if (seen[at]) continue;
            seen[at] = true;
            const Instruction &code = program.code[at];
            switch (code.operation) {
            case Operation::take:
            case Operation::match: sink(code); break;
            case Operation::fork: pending.push_back(code.y), pending.push_back(code.x); break;
            case Operation::require:
                if (has(column, code.x)) pending.push_back(code.y);
                break;
            case Operation::forbid:
                if (!has(column, code.x)) pending.push_back(code.y);
                break;
            case Operation::possessive: pending.push_back(code.y); break;
            }
        }
    }

    // A possessive repeat is treated as a greedy one.  That is equivalent if the rest cannot match inside the run or
    // can always match after it; this checks that.
    void check_possessive(const Program &program) const {
        for (const Instruction &code : program.code) {
            if (code.operation != Operation::possessive) continue;
            bool goes_on_inside = false, ends_behind = true;
            for (size_t column = 0; column < width_; ++column) {
                bool ends = false, goes_on = false;
                std::vector<bool> seen(program.code.size());
                follow(program, code.y, column, seen, [&](const Instruction &at) {
                    ends = ends || at.operation == Operation::match;
                    goes_on = goes_on || (at.operation == Operation::take && has(column, at.x));
                });
                if (has(column, code.x)) {
                    goes_on_inside = goes_on_inside || ends || goes_on;
                } else {
                    ends_behind = ends_behind && ends;
                }
            }
            if (goes_on_inside && !ends_behind) {
                throw std::invalid_argument("has a possessive repeat that excludes possible matches");
            }
        }
    }

    // An expression that starts with S+ or S* fails everywhere in a run of S if it fails at the first character.
    void find_leading_run(const Program &program) {
        const Instruction &first = program.code[program.start];
        uint32_t set = 0;
        if (first.operation == Operation::take) {
            const Instruction &then = program.code[first.y];
            if (then.operation != Operation::fork || then.x != program.start) return;
            set = first.x;
        } else if (first.operation == Operation::fork) {
            const Instruction &body = program.code[first.x];
            if (body.operation != Operation::take || body.y != program.start) return;
            set = body.x;
        } else {
            return;
        }
        for (size_t column = 0; column < columns_.size(); ++column) leading_run_.push_back(columns_.has(column, set));
    }

    ColumnTable columns_;
    size_t end_column_, width_; // the end of the text has a column of its own, the last
    uint32_t start_ = 0;
    std::vector<uint32_t> table_; // the next state times the width; the lowest bit is set if there is a match
    std::vector<bool> leading_run_;
    std::vector<Places> states_; // only during construction
    std::map<Places, uint32_t> numbers_;
};

} // namespace quire::tokenizer
