// Memory in large pages, where the system has them: a processor keeps the addresses of few pages, and what is read all
// over small ones waits for addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire {

inline constexpr size_t large_page_bytes = size_t{2} << 20;

/** The size of the large pages that hold so much. */
inline constexpr size_t whole_large_pages(size_t size_bytes) {
    return (size_bytes + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
}

/** Ask for large pages in memory that is still to be filled; advice, which may be ignored. */
inline void advise_large_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t size_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t skipped =
        (large_page_bytes - reinterpret_cast<uintptr_t>(memory) % large_page_bytes) % large_page_bytes;
    if (size_bytes < skipped + large_page_bytes) return;
    const size_t whole = (size_bytes - skipped) / large_page_bytes * large_page_bytes;
    madvise(static_cast<char *>(memory) + skipped, whole, MADV_HUGEPAGE);
#endif
}

// Of unknown content, aligned to lines of the caches; large pages from half of one on.
class AlignedMemory {
  public:
    AlignedMemory() = default;
    // std::bad_alloc
    explicit AlignedMemory(size_t size_bytes) : AlignedMemory(size_bytes, size_bytes >= large_page_bytes / 2) {}

    uint8_t *data() const { return memory_.get(); }
    // Other memory where this is smaller: what a thread keeps as scratch memory.  std::bad_alloc
    uint8_t *at_least(size_t size_bytes) {
        if (size_bytes > size_bytes_) *this = AlignedMemory(size_bytes);
        return data();
    }

  private:
    struct Free {
        size_t alignment = 0;
        void operator()(uint8_t *memory) const { ::operator delete(memory, std::align_val_t{alignment}); }
    };

    AlignedMemory(size_t size_bytes, bool is_large) {
        const Free free{is_large ? large_page_bytes : 64};
        size_bytes_ = is_large ? whole_large_pages(size_bytes) : size_bytes;
        memory_ = {static_cast<uint8_t *>(::operator new(size_bytes_, std::align_val_t{free.alignment})), free};
        if (is_large) advise_large_pages(data(), size_bytes_);
    }

    std::unique_ptr<uint8_t, Free> memory_{nullptr, Free{}};
    size_t size_bytes_ = 0;
};

} // namespace quire
