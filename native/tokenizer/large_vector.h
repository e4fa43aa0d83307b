// Vectors for what is as long as a text.  From a few megabytes on, the C library asks the system for fresh pages each
// time, and taking them one small page after the other costs as much as the work that is done in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire::tokenizer {

template <class T> struct LargePages {
    using value_type = T;
    static constexpr size_t page_bytes = size_t{2} << 20, smallest_bytes = size_t{4} << 20;

    LargePages() = default;
    template <class U> LargePages(const LargePages<U> &) {}

    T *allocate(size_t n) {
        const size_t size_bytes = n * sizeof(T);
        void *memory = nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (size_bytes >= smallest_bytes) {
            const size_t whole = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
            memory = std::aligned_alloc(page_bytes, whole);
            if (memory != nullptr) madvise(memory, whole, MADV_HUGEPAGE); // advice: it may be ignored
        } else
#endif
            memory = std::malloc(size_bytes);
        if (memory == nullptr) throw std::bad_alloc();
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, size_t) { std::free(memory); }
    template <class U> bool operator==(const LargePages<U> &) const { return true; }
};

template <class T> using LargeVector = std::vector<T, LargePages<T>>;

/** Ask for large pages in memory that is still to be filled; advice, which may be ignored. */
inline void advise_large_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t size_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr size_t page_bytes = LargePages<char>::page_bytes;
    const size_t skipped = (page_bytes - reinterpret_cast<uintptr_t>(memory) % page_bytes) % page_bytes;
    if (size_bytes < LargePages<char>::smallest_bytes || size_bytes < skipped + page_bytes) return;
    const size_t whole = (size_bytes - skipped) / page_bytes * page_bytes;
    madvise(static_cast<char *>(memory) + skipped, whole, MADV_HUGEPAGE);
#endif
}

} // namespace quire::tokenizer
