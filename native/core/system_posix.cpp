#ifndef _WIN32

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "core/error.h"
#include "core/system.h"

namespace quire {
namespace {

constexpr size_t most_at_once = size_t{1} << 30; // bytes per call

int descriptor(intptr_t handle) { return static_cast<int>(handle); }

std::shared_ptr<uint8_t> owned(void *pages, size_t size_bytes) {
    if (pages == MAP_FAILED) return nullptr;
    return {static_cast<uint8_t *>(pages), [size_bytes](uint8_t *p) { munmap(p, size_bytes); }};
}

} // namespace

std::string system_error() { return std::strerror(errno); }

File File::open(const std::string &path) {
    File file;
    file.handle_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a named pipe must not block
    return file;
}

File File::create(const std::string &directory, std::string_view prefix, std::string_view suffix, std::string &path) {
    path = cat(directory, '/', prefix, "XXXXXX", suffix);
    File file;
#ifdef __APPLE__
    file.handle_ = mkstemps(path.data(), static_cast<int>(suffix.size()));
    if (file.is_open()) fcntl(descriptor(file.handle_), F_SETFD, FD_CLOEXEC);
#else
    file.handle_ = mkostemps(path.data(), static_cast<int>(suffix.size()), O_CLOEXEC);
#endif
    return file;
}

std::optional<FileInfo> File::info() const {
    struct stat info{};
    if (fstat(descriptor(handle_), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
#ifdef __APPLE__
    const timespec modified = info.st_mtimespec, changed = info.st_ctimespec;
#else
    const timespec modified = info.st_mtim, changed = info.st_ctim;
#endif
    return FileInfo{static_cast<uint64_t>(info.st_dev),     static_cast<uint64_t>(info.st_ino),
                    static_cast<uint64_t>(info.st_size),    static_cast<int64_t>(modified.tv_sec),
                    static_cast<int64_t>(modified.tv_nsec), static_cast<int64_t>(changed.tv_sec),
                    static_cast<int64_t>(changed.tv_nsec),  info.st_uid == geteuid() || info.st_uid == 0};
}

int64_t File::read_at(void *to, size_t size_bytes, uint64_t offset) const {
    for (;;) {
        const ssize_t n =
            pread(descriptor(handle_), to, std::min(size_bytes, most_at_once), static_cast<off_t>(offset));
        if (n >= 0 || errno != EINTR) return n;
    }
}

bool File::write_at(const void *from, size_t size_bytes, uint64_t offset) {
    const auto *bytes = static_cast<const uint8_t *>(from);
    while (size_bytes > 0) {
        const ssize_t n =
            pwrite(descriptor(handle_), bytes, std::min(size_bytes, most_at_once), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return false;
        bytes += n;
        offset += static_cast<uint64_t>(n);
        size_bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool File::end_at(uint64_t size_bytes) {
    return ftruncate(descriptor(handle_), static_cast<off_t>(size_bytes)) == 0 && fsync(descriptor(handle_)) == 0;
}

void File::close() {
    if (is_open()) ::close(descriptor(std::exchange(handle_, none)));
}

bool rename_over(const std::string &from, const std::string &to) {
    if (std::rename(from.c_str(), to.c_str()) != 0) return false;
    const int folder = ::open(std::filesystem::path(to).parent_path().c_str(), O_RDONLY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        ::close(folder);
    }
    return true;
}

void remove_file(const std::string &path) { unlink(path.c_str()); }

std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes) {
    return owned(mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, descriptor(file.handle_), 0), size_bytes);
}

std::shared_ptr<uint8_t> new_pages(size_t size_bytes, bool all_written) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (all_written ? 0 : MAP_NORESERVE);
    return owned(mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0), size_bytes);
}

void make_read_only(uint8_t *pages, size_t size_bytes) { mprotect(pages, size_bytes, PROT_READ); }

bool lock_pages(uint8_t *pages, size_t size_bytes) { return mlock(pages, size_bytes) == 0; }

void give_back(const uint8_t *begin, size_t size_bytes) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + size_bytes) / page * page;
    if (first >= end) return;
    munlock(reinterpret_cast<void *>(first), end - first);
    madvise(reinterpret_cast<void *>(first), end - first, MADV_DONTNEED);
}

#ifdef __linux__
void wait_for_change(const std::atomic<uint32_t> &word, uint32_t seen, double most_s) {
    timespec most{static_cast<time_t>(most_s), static_cast<long>((most_s - static_cast<time_t>(most_s)) * 1e9)};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &most, nullptr, 0);
}
void wake_waiters(const std::atomic<uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
#else
void wait_for_change(const std::atomic<uint32_t> &word, uint32_t seen, double) {
    const timespec briefly{0, 50'000};
    if (word.load() == seen) nanosleep(&briefly, nullptr);
}
void wake_waiters(const std::atomic<uint32_t> &) {}
#endif

WakeSignal::WakeSignal() {
    int ends[2];
    if (pipe(ends) != 0) throw CapacityError("decoder", cat("cannot create a pipe: ", std::strerror(errno)));
    read_fd_ = ends[0];
    write_fd_ = ends[1];
    for (int end : ends) {
        fcntl(end, F_SETFD, FD_CLOEXEC);
        fcntl(end, F_SETFL, O_NONBLOCK);
    }
}

WakeSignal::~WakeSignal() {
    ::close(read_fd_);
    ::close(write_fd_);
}

void WakeSignal::raise() { // the pipe holds at most one byte, so it is never full
    if (std::exchange(is_raised_, true)) return;
    while (write(write_fd_, "", 1) < 0 && errno == EINTR) {
    }
}

void WakeSignal::lower() {
    if (!std::exchange(is_raised_, false)) return;
    char byte;
    while (read(read_fd_, &byte, 1) < 0 && errno == EINTR) {
    }
}

} // namespace quire

#endif
