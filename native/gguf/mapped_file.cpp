#include "gguf/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "core/large_pages.h"

namespace quire {
namespace {

// Closes on every way out.
struct Descriptor {
    int value;
    ~Descriptor() { close(value); }
};

[[noreturn]] void fail(const std::string &path, const char *what) {
    throw LoadError("file", cat("'", path, "' must ", what, ": ", std::strerror(errno)));
}

} // namespace

MappedFile::Identity MappedFile::identify(int descriptor) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) return {};
    if (!S_ISREG(info.st_mode)) return {};
#ifdef __APPLE__
    const timespec modified = info.st_mtimespec;
#else
    const timespec modified = info.st_mtim;
#endif
    return {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<uint64_t>(info.st_size),
            static_cast<int64_t>(modified.tv_sec), static_cast<int64_t>(modified.tv_nsec)};
}

// Times of files advance with the kernel's ticks, and coarsely on some file systems.
constexpr int64_t young_s = 2;

void MappedFile::note_change(int descriptor) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) return;
#ifdef __APPLE__
    const timespec changed = info.st_ctimespec;
#else
    const timespec changed = info.st_ctim;
#endif
    changed_s_ = static_cast<int64_t>(changed.tv_sec);
    changed_ns_ = static_cast<int64_t>(changed.tv_nsec);
    is_young_ = std::max(changed_s_, identity_.modified_s) + young_s > static_cast<int64_t>(time(nullptr));
}

std::string MappedFile::identity() const {
    if (is_young_) return {};
    return cat(identity_.device, ':', identity_.inode, ':', identity_.size_bytes, ':', identity_.modified_s, '.',
               identity_.modified_ns, ':', changed_s_, '.', changed_ns_);
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string &path, LoadMode mode) {
    // Non-blocking, so that a named pipe answers at once.
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.value < 0) fail(path, "be readable");
    std::shared_ptr<MappedFile> mapped(new MappedFile);
    mapped->path_ = path;
    mapped->mode_ = mode;
    mapped->identity_ = identify(file.value);
    if (mapped->identity_.inode == 0)
        throw LoadError("file", cat("'", path, "' must be a regular file but is something else"));
    mapped->note_change(file.value);
    mapped->size_bytes_ = mapped->identity_.size_bytes;
    if (mapped->size_bytes_ == 0) throw LoadError("file", cat("'", path, "' must have contents but is empty"));
    mapped->map(file.value);
    if (mode == LoadMode::copy) mapped->read(file.value);
    return mapped;
}

void MappedFile::map(int descriptor) {
    bool own = mode_ == LoadMode::copy;
    int flags = own ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *pages = mmap(nullptr, size_bytes_, own ? PROT_READ | PROT_WRITE : PROT_READ, flags, own ? -1 : descriptor, 0);
    if (pages == MAP_FAILED)
        throw CapacityError("file",
                            cat("'", path_, "' must fit in memory (", size_bytes_, " bytes): ", std::strerror(errno)));
    data_ = static_cast<uint8_t *>(pages);
    if (own) {
        advise_large_pages(pages, size_bytes_); // weights are read from end to end for every token
    } else if (mode_ == LoadMode::lock && mlock(pages, size_bytes_) != 0) {
        throw CapacityError("file", cat("'", path_, "' must be locked in memory (", size_bytes_,
                                        " bytes, see ulimit -l): ", std::strerror(errno)));
    }
}

void MappedFile::read(int descriptor) {
    for (size_t done = 0; done < size_bytes_;) {
        ssize_t n = pread(descriptor, data_ + done, std::min<size_t>(size_bytes_ - done, size_t{1} << 30),
                          static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(path_, "be readable to its end");
        if (n == 0) throw LoadError("file", cat("'", path_, "' must have ", size_bytes_, " bytes but ends at ", done));
        done += static_cast<size_t>(n);
    }
    mprotect(data_, size_bytes_, PROT_READ);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(data_, size_bytes_);
}

void MappedFile::check_unchanged() const {
    Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.value < 0) fail(path_, "still be there");
    if (!(identify(file.value) == identity_))
        throw LoadError("file", cat("'", path_, "' must not change while it is in use but did"));
}

} // namespace quire
