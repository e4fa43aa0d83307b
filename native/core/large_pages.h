// Memory in large pages, if the system has them.  A processor's TLB holds the addresses of few pages, so scattered
// reads from small pages stall on TLB misses.
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

/** Round a size up to whole large pages. */
inline constexpr size_t whole_large_pages(size_t size_bytes) {
    return (size_bytes + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
}

/** Ask for large pages before memory is first written; the system may ignore the advice. */
inline void advise_large_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t size_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t skipped =
        (large_page_bytes - reinterpret_cast<uintptr_t>(memory) % large_page_bytes) % large_page_bytes;
    if (size_bytes < skipped + large_page_bytes) return;
    const size_t whole = (size_bytes - skipped) / large_page_bytes * large_page_bytes;
    madvise(static_cast<char *>(memory) + skipped, whole, MADV_HUGEPAGE);
#endif
}

// Uninitialised memory, aligned to cache lines; in large pages if it fills at least half of one.
class AlignedMemory {
  public:
    AlignedMemory() = default;
    // Throws std::bad_alloc.
    explicit AlignedMemory(size_t size_bytes) : AlignedMemory(size_bytes, size_bytes >= large_page_bytes / 2) {}

    uint8_t *data() const { return memory_.get(); }
    // Return at least this much memory, without keeping the contents if it has to grow; for a thread's scratch memory.
    // Throws std::bad_alloc.
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
