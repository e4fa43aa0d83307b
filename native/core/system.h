// What operating systems do each in a way of their own: files, pages of memory, and what wakes an event loop.
// system_posix.cpp and system_windows.cpp have it, one of which is compiled.  Nothing here throws but what says so; where
// a call fails, system_error() tells why.  Paths are UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

/** Why the last call of these on this thread failed, in the system's words. */
std::string system_error();

struct FileInfo {
    uint64_t device, inode, size_bytes;
    int64_t modified_s, modified_ns; // of the contents
    int64_t changed_s, changed_ns; // of contents, name or rights
    bool is_trusted; // belongs to this user or to the system's administrator
};

// An open file, closed when this ends.
class File {
  public:
    File() = default;
    File(File &&other) noexcept : handle_(std::exchange(other.handle_, none)) {}
    File &operator=(File &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~File() { close(); }

    // To read.  What is no regular file (a named pipe) does not make it wait.
    static File open(const std::string &path);
    // To write: a new file in `directory`, whose name no other has and begins and ends so; `path` becomes its path.
    static File create(const std::string &directory, std::string_view prefix, std::string_view suffix,
                       std::string &path);

    bool is_open() const { return handle_ != none; }
    std::optional<FileInfo> info() const; // nothing where it is no regular file
    // How many bytes came; 0 at the file's end, negative when reading failed.
    int64_t read_at(void *to, size_t size_bytes, uint64_t offset) const;
    bool write_at(const void *from, size_t size_bytes, uint64_t offset);
    // Exactly so long, and on the disk.
    bool end_at(uint64_t size_bytes);
    void close();

  private:
    friend std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes);
    static constexpr intptr_t none = -1;
    intptr_t handle_ = none;
};

/** Give a complete file its name, in place of the file that has it; also after a loss of power it has one of the two. */
bool rename_over(const std::string &from, const std::string &to);
void remove_file(const std::string &path);

/** The contents of an open file, read-only and shared with others who map it; null: it failed. */
std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes);
/** Pages of zeros, which take memory when they are first written to; null: it failed.  `all_written`: all of them will
 *  be, so that it fails at once where the system knows that they do not fit. */
std::shared_ptr<uint8_t> new_pages(size_t size_bytes, bool all_written);
void make_read_only(uint8_t *pages, size_t size_bytes);
/** Keep pages in memory; false: this process may not. */
bool lock_pages(uint8_t *pages, size_t size_bytes);
/** Take the whole pages inside of a range out of memory: mapped files are read again when touched, others are zero. */
void give_back(const uint8_t *begin, size_t size_bytes);

// A file descriptor that is readable while this is raised, for event loops.
class WakeSignal {
  public:
    WakeSignal(); // CapacityError: no descriptor is free; UnsupportedError: on Windows, whose loops do not wait for one
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
