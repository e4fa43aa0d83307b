// The regular expressions of pre-tokenizers, parsed into a program for a machine with ordered choices (Thompson's; see
// Cox, "Regular Expression Matching: the Virtual Machine Approach").
//
// Supported: alternatives, groups, (?i:...), sets with ranges, properties, complements and &&, * + ? {n} {n,m} {n,},
// possessive *+ ++ ?+ if greedy repeats are equivalent, one character of look-ahead, and $ (the end of a line, as in
// Oniguruma).  Anything else is an error that names it.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "character_set.h"
#include "unicode.h"

namespace quire::tokenizer {

enum class Operation : uint8_t {
    take, // a character of set x, then y
    fork, // x, or y if x fails
    require, // the next character is in set x; then y
    forbid, // there is no next character, or it is not in set x; then y
    possessive, // marks the end of a possessive repeat of set x; then y
    match,
};

struct Instruction {
    Operation operation;
    uint32_t x = 0, y = 0;
};

struct Program {
    std::vector<CharacterSet> sets;
    std::vector<Instruction> code; // execution starts at `start`
    uint32_t start = 0;
};

// Throws std::invalid_argument if the expression is malformed or uses an unsupported feature.
class ExpressionParser {
  public:
    static Program parse(std::string_view text) {
        ExpressionParser parser(text);
        const Node root = parser.alternatives();
        if (parser.at_ != text.size()) parser.fail("an unmatched ')'");
        const uint32_t match = parser.emit({Operation::match});
        parser.program_.start = parser.build(root, match);
        return std::move(parser.program_);
    }

  private:
    enum class Kind { set, sequence, choice, repeat, require, forbid };
    struct Node {
        Kind kind = Kind::sequence;
        uint32_t set = 0;
        std::vector<Node> parts;
        uint32_t least = 0, most = 0; // counts of a repeat; `unbounded` means no limit
        bool possessive = false;
    };
    static constexpr uint32_t unbounded = 0xffffffff, longest_repeat = 1024;
    static constexpr size_t largest_program = 20000, deepest_group = 50;

    explicit ExpressionParser(std::string_view text) : text_(text) {}

    [[noreturn]] void fail(std::string_view what) const {
        throw std::invalid_argument("has " + std::string(what) + " at byte " + std::to_string(at_));
    }

    // Reading

    bool more() const { return at_ < text_.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    bool skip(std::string_view expected) {
        if (text_.substr(at_, expected.size()) != expected) return false;
        at_ += expected.size();
        return true;
    }
    uint32_t take_code() {
        const Character c = character_at(text_.data(), at_, text_.size());
        if (c.code == not_a_code) fail("bytes that are not UTF-8");
        at_ += c.n_bytes;
        return c.code;
    }

    Node alternatives() {
        if (++depth_ > deepest_group) fail("groups too deep");
        Node found{.kind = Kind::choice};
        do {
            found.parts.push_back(sequence());
        } while (skip("|"));
        --depth_;
        return found.parts.size() == 1 ? std::move(found.parts[0]) : found;
    }

    Node sequence() {
        Node found;
        while (more() && peek() != '|' && peek() != ')') {
            Node part = atom();
            while (std::optional<Node> repeated = repeat(part)) part = std::move(*repeated);
            found.parts.push_back(std::move(part));
        }
        return found;
    }

    std::optional<Node> repeat(const Node &part) {
        Node found{.kind = Kind::repeat, .parts = {part}};
        if (skip("*")) {
            found.least = 0, found.most = unbounded;
        } else if (skip("+")) {
            found.least = 1, found.most = unbounded;
        } else if (skip("?")) {
            found.least = 0, found.most = 1;
        } else if (peek() == '{') {
            ++at_;
            found.least = found.most = integer();
            if (skip(",")) found.most = peek() == '}' ? unbounded : integer();
            if (!skip("}") || found.most < found.least) fail("a malformed count");
            return found; // a following + repeats it, as in Oniguruma
        } else {
            return std::nullopt;
        }
        if (peek() == '?') fail("a lazy repeat");
        found.possessive = skip("+");
        if (found.possessive && part.kind != Kind::set) fail("a possessive repeat of a group");
        return found;
    }

    uint32_t integer() {
        uint32_t value = 0;
        if (peek() < '0' || peek() > '9') fail("a malformed count");
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
            if (value > longest_repeat) fail("a count above 1024");
        }
        return value;
    }

    Node atom() {
        if (skip("(?:")) return group(ignore_case_);
        if (skip("(?i:")) return group(true);
        if (skip("(?=")) return look_ahead(Kind::require);
        if (skip("(?!")) return look_ahead(Kind::forbid);
        if (peek() == '(' && peek(1) == '?') fail("an unsupported kind of group");
        if (skip("(")) return group(ignore_case_);
        if (skip("[")) return of_set(bracket());
        if (skip("$")) {
            CharacterSet others;
            others.add('\n', '\n');
            others.complement();
            Node found = of_set(std::move(others));
            found.kind = Kind::forbid;
            return found;
        }
        if (skip("^")) fail("a '^'");
        if (skip(".")) {
            CharacterSet all;
            all.add('\n', '\n');
            all.complement();
            return of_set(std::move(all));
        }
        if (peek() == '\\') {
            ++at_;
            return of_set(escape());
        }
        if (peek() == '*' || peek() == '+' || peek() == '?') fail("a repeat of nothing");
        return of_set(one(take_code()));
    }

    Node group(bool ignore_case) {
        const bool outer = ignore_case_;
        ignore_case_ = ignore_case;
        Node found = alternatives();
        ignore_case_ = outer;
        if (!skip(")")) fail("an unclosed group");
        return found;
    }

    Node look_ahead(Kind kind) {
        Node found = group(ignore_case_);
        while (found.kind == Kind::sequence && found.parts.size() == 1) found = Node(found.parts[0]);
        if (found.kind != Kind::set) fail("a look-ahead of more than one character");
        found.kind = kind;
        return found;
    }

    Node of_set(CharacterSet set) {
        set.normalize();
        program_.sets.push_back(std::move(set));
        return {.kind = Kind::set, .set = static_cast<uint32_t>(program_.sets.size() - 1)};
    }

    // A character and, under (?i:), the characters that differ from it only in case.  Latin letters, and the characters
    // that Unicode folds to them, are enough.
    CharacterSet one(uint32_t code) const {
        CharacterSet found;
        found.add(code, code);
        if (!ignore_case_) return found;
        if (code >= 0x80) throw std::invalid_argument("ignores the case of a character that is not a Latin letter");
        const uint32_t lower = code | 0x20;
        if (lower < 'a' || lower > 'z') return found;
        found.add(lower, lower);
        found.add(lower - 0x20, lower - 0x20);
        if (lower == 's') found.add(0x17f, 0x17f);
        if (lower == 'k') found.add(0x212a, 0x212a);
        return found;
    }

    CharacterSet escape() {
        CharacterSet found;
        if (!more()) fail("a '\\' at its end");
        const char c = text_[at_];
        if (c == 'p' || c == 'P') return property();
        const std::string_view named = "nrtvfsSdDwW";
        if (named.find(c) == std::string_view::npos) {
            if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
                fail(std::string("the escape \\") + c);
            }
            return one(take_code());
        }
        ++at_;
        switch (c) {
        case 'n': found.add('\n', '\n'); break;
        case 'r': found.add('\r', '\r'); break;
        case 't': found.add('\t', '\t'); break;
        case 'v': found.add('\v', '\v'); break;
        case 'f': found.add('\f', '\f'); break;
        case 's':
        case 'S': found.add_white_space(); break;
        case 'd':
        case 'D': found.add_categories(bit(Category::Nd)); break;
        default: fail(std::string("the escape \\") + c);
        }
        if (c == 'S' || c == 'D') found.complement();
        return found;
    }

    CharacterSet property() {
        const bool negated = text_[at_++] == 'P';
        std::string name;
        if (!skip("{")) fail("a property without a name");
        const bool circumflex = skip("^");
        while (more() && peek() != '}') name.push_back(text_[at_++]);
        if (!skip("}")) fail("an unclosed property");
        CharacterSet found;
        if (name == "Han") {
            found.add_han();
        } else {
            const Classes classes = categories_named(name);
            if (classes == 0) fail("the property '" + name + "'");
            found.add_categories(classes);
        }
        if (negated != circumflex) found.complement();
        return found;
    }

    static Classes categories_named(std::string_view name) {
        constexpr std::string_view names = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
        Classes found = 0;
        if (name.empty() || name.size() > 2) return 0;
        for (size_t i = 0; i < names.size(); i += 2)
            if (names.substr(i, name.size()) == name) found |= Classes{1} << i / 2;
        return found;
    }

    // Parse a set after its '['.
    CharacterSet bracket() {
        if (++depth_ > deepest_group) fail("sets too deep");
        const bool negated = skip("^");
        CharacterSet found;
        std::optional<CharacterSet> met; // the set before &&
        for (bool first = true; peek() != ']' || first; first = false) {
            if (!more()) fail("an unclosed set");
            if (skip("&&")) {
                found.normalize();
                if (met)
                    met->intersect(found);
                else
                    met = found;
                found = {};
                continue;
            }
            add_member(found);
        }
        ++at_;
        found.normalize();
        if (met) {
            met->intersect(found);
            found = *met;
        }
        if (negated) found.complement();
        --depth_;
        return found;
    }

    void add_member(CharacterSet &found) {
        if (skip("[:")) fail("a POSIX class");
        if (skip("[")) return found.add(bracket());
        const bool escaped = skip("\\");
        CharacterSet member = escaped ? escape() : one(take_code());
        const bool single = member.ranges().size() == 1 && member.ranges()[0].first == member.ranges()[0].second;
        if (single && peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
            ++at_;
            const uint32_t first = member.ranges()[0].first;
            const CharacterSet last = skip("\\") ? escape() : one(take_code());
            if (last.ranges().size() != 1 || last.ranges()[0].first < first) fail("a malformed range");
            if (ignore_case_) fail("a range that ignores case");
            member.add(first, last.ranges()[0].first);
        }
        found.add(member);
    }

    // Building goes from the end of the expression, so that the successor of each part exists.

    uint32_t emit(Instruction instruction) {
        if (program_.code.size() >= largest_program) fail("too many parts");
        program_.code.push_back(instruction);
        return static_cast<uint32_t>(program_.code.size() - 1);
    }

    uint32_t build(const Node &node, uint32_t next) {
        switch (node.kind) {
        case Kind::set: return emit({Operation::take, node.set, next});
        case Kind::require: return emit({Operation::require, node.set, next});
        case Kind::forbid: return emit({Operation::forbid, node.set, next});
        case Kind::sequence:
            for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) next = build(*part, next);
            return next;
        case Kind::choice: {
            uint32_t found = build(node.parts.back(), next);
            for (size_t i = node.parts.size() - 1; i-- > 0;) {
                found = emit({Operation::fork, build(node.parts[i], next), found});
            }
            return found;
        }
        case Kind::repeat: return build_repeat(node, next);
        }
        return next;
    }

    uint32_t build_repeat(const Node &node, uint32_t next) {
        const Node &part = node.parts[0];
        if (node.possessive) next = emit({Operation::possessive, part.set, next});
        if (node.most == unbounded) {
            const uint32_t fork = emit({Operation::fork, 0, next});
            const uint32_t body = build(part, fork);
            program_.code[fork].x = body;
            next = node.least == 0 ? fork : body;
            for (uint32_t i = 1; i < node.least; ++i) next = build(part, next);
            return next;
        }
        const uint32_t behind = next;
        for (uint32_t i = node.least; i < node.most; ++i) next = emit({Operation::fork, build(part, next), behind});
        for (uint32_t i = 0; i < node.least; ++i) next = build(part, next);
        return next;
    }

    std::string_view text_;
    size_t at_ = 0, depth_ = 0;
    bool ignore_case_ = false;
    Program program_;
};

} // namespace quire::tokenizer
