// Functions that differ between operating systems: files, memory pages and waking an event loop.  system_posix.cpp and
// system_windows.cpp implement this; one of them is compiled.  Nothing throws unless its comment says so; after a
// failure system_error() has the reason.  Paths are UTF-8.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

/** The system's message for the last of these calls that failed on this thread. */
std::string system_error();

struct FileInfo {
    uint64_t device, inode, size_bytes;
    int64_t modified_s, modified_ns; // last change of the contents
    int64_t changed_s, changed_ns; // last change of contents, name or permissions
    bool is_trusted; // owned by this user or by the system's administrator
};

// An open file, closed by the destructor.
class File {
  public:
    File() = default;
    File(File &&other) noexcept : handle_(std::exchange(other.handle_, none)) {}
    File &operator=(File &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~File() { close(); }

    // Open for reading.  Returns at once even for a named pipe.
    static File open(const std::string &path);
    // Create a file for writing in `directory`, with a unique name between `prefix` and `suffix`; sets `path`.
    static File create(const std::string &directory, std::string_view prefix, std::string_view suffix,
                       std::string &path);

    bool is_open() const { return handle_ != none; }
    std::optional<FileInfo> info() const; // nullopt if it is not a regular file
    // Return the number of bytes read, 0 at the end of the file, negative after a failure.
    int64_t read_at(void *to, size_t size_bytes, uint64_t offset) const;
    bool write_at(const void *from, size_t size_bytes, uint64_t offset);
    // Set the file's size and flush it to the disk.
    bool end_at(uint64_t size_bytes);
    void close();

  private:
    friend std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes);
    static constexpr intptr_t none = -1;
    intptr_t handle_ = none;
};

/** Rename a complete file, replacing the target atomically: after a power loss it is the old or the new file. */
bool rename_over(const std::string &from, const std::string &to);
void remove_file(const std::string &path);

/** Map an open file read-only and shared with other processes; null on failure. */
std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes);
/** Map zeroed pages, which take memory on the first write; null on failure.  `all_written` says that all will be
 *  written, so the call fails at once if the system knows that they cannot fit. */
std::shared_ptr<uint8_t> new_pages(size_t size_bytes, bool all_written);
void make_read_only(uint8_t *pages, size_t size_bytes);
/** Lock pages in memory; false if this process is not allowed to. */
bool lock_pages(uint8_t *pages, size_t size_bytes);
/** Release the whole pages in a range: pages of a mapped file are read again when touched, others become zero. */
void give_back(const uint8_t *begin, size_t size_bytes);

/** Sleep until a word of memory that processes share no longer holds `seen`, or for so many seconds; may return early. */
void wait_for_change(const std::atomic<uint32_t> &word, uint32_t seen, double most_s);
/** Wake everyone who waits for a change of the word. */
void wake_waiters(const std::atomic<uint32_t> &word);

// A file descriptor for event loops that is readable while the signal is raised.
class WakeSignal {
  public:
    // Throws CapacityError if no descriptor is free, UnsupportedError on Windows, whose event loops do not use
    // descriptors.
    WakeSignal();
    ~WakeSignal();
    WakeSignal(const WakeSignal &) = delete;
    WakeSignal &operator=(const WakeSignal &) = delete;

    int fd() const { return read_fd_; }
    void raise();
    void lower();

  private:
    [[maybe_unused]] int read_fd_ = -1, write_fd_ = -1;
    [[maybe_unused]] bool is_raised_ = false;
};

} // namespace quire
