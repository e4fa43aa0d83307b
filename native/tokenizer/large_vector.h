// Vectors as long as a text.  From a few megabytes on, the C library requests fresh pages from the system each time,
// and faulting them in one small page at a time costs as much as the work done in them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "core/large_pages.h"

namespace quire::tokenizer {

template <class T> struct LargePages {
    using value_type = T;
    static constexpr size_t smallest_bytes = 2 * large_page_bytes;

    LargePages() = default;
    template <class U> LargePages(const LargePages<U> &) {}

    T *allocate(size_t n) {
        const size_t size_bytes = n * sizeof(T);
        void *memory = nullptr;
#if defined(__linux__)
        if (size_bytes >= smallest_bytes) {
            const size_t whole = whole_large_pages(size_bytes);
            memory = std::aligned_alloc(large_page_bytes, whole);
            if (memory != nullptr) advise_large_pages(memory, whole);
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

} // namespace quire::tokenizer
