// Prefetching of one cache line.  Each instruction set's files include this; nothing here has external linkage.
#pragma once

namespace quire {
namespace {

// The target of a prefetch.  The first-level cache can wait for few lines at a time (24 on Zen 4), and loads that miss
// compete for these places; the second-level cache can wait for more.
enum class CacheLevel { first, second };
template <CacheLevel level = CacheLevel::second> [[gnu::always_inline]] inline void prefetch_line(const void *line) {
    __builtin_prefetch(line, 0, level == CacheLevel::first ? 3 : 2);
}

} // namespace
} // namespace quire
