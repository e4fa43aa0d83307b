// Limits of parameters, and the errors for values outside them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace quire {

// Numbers from low to high, all finite.
struct NumberLimits {
    double low, high;
    bool is_low_excluded = false;
};

constexpr NumberLimits at_least(double low) { return {low, std::numeric_limits<double>::infinity()}; }
constexpr NumberLimits above(double low) { return {low, std::numeric_limits<double>::infinity(), true}; }
constexpr NumberLimits range(double low, double high) { return {low, high}; }

// At most n texts of 1 to n_bytes bytes.
struct TextLimits {
    size_t n, n_bytes;
};

// At most n token ids.
struct IdLimits {
    size_t n;
    bool needs_one;
};

// Numbers for at most n token ids.
struct BiasLimits {
    size_t n;
    NumberLimits number;
};

struct NoLimits {};

using TokenBias = std::vector<std::pair<int32_t, float>>;

[[noreturn]] inline void refuse_parameter(const char *name, const std::string &reason) {
    throw RequestError("sampling", cat(name, ' ', reason));
}

inline void check_parameter(const char *name, double value, NumberLimits limits) {
    const bool is_low = limits.is_low_excluded ? value <= limits.low : value < limits.low;
    if (std::isfinite(value) && !is_low && value <= limits.high) return;
    const std::string expected = limits.is_low_excluded    ? cat("above ", limits.low)
                                 : std::isinf(limits.high) ? cat(limits.low, " or more")
                                                           : cat("from ", limits.low, " to ", limits.high);
    refuse_parameter(name, cat(value, " is out of range: expected ", expected));
}

inline void check_n_entries(const char *name, size_t n, size_t most) {
    if (n > most) refuse_parameter(name, cat("has ", n, " entries: at most ", most, " are allowed"));
}

inline void check_parameter(const char *name, const std::vector<std::string> &texts, TextLimits limits) {
    check_n_entries(name, texts.size(), limits.n);
    for (const std::string &text : texts)
        if (text.empty() || text.size() > limits.n_bytes)
            refuse_parameter(name, cat("has a string of ", text.size(), " bytes: expected 1 to ", limits.n_bytes));
}

inline void check_parameter(const char *name, const std::vector<int32_t> &ids, IdLimits limits) {
    check_n_entries(name, ids.size(), limits.n);
    if (limits.needs_one && ids.empty()) refuse_parameter(name, "is empty: give at least one id");
}

inline void check_parameter(const char *name, const TokenBias &bias, BiasLimits limits) {
    check_n_entries(name, bias.size(), limits.n);
    for (size_t i = 0; i < bias.size(); ++i) {
        check_parameter(name, bias[i].second, limits.number);
        for (size_t j = 0; j < i; ++j)
            if (bias[j].first == bias[i].first) refuse_parameter(name, cat("has the id ", bias[i].first, " twice"));
    }
}

template <typename T> void check_parameter(const char *, const T &, NoLimits) {}

} // namespace quire
