// A regular file's bytes in memory: mapped, mapped and locked, or read into memory of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/system.h"

namespace quire {

enum class LoadMode { mmap, copy, lock };

// Read-only bytes.  A mapped file that somebody cuts while it is in use ends the process when touched, so long-lived
// users ask check_unchanged().
class MappedFile {
  public:
    // LoadError unless `path` is a readable regular file; CapacityError when locking is not allowed.
    static std::shared_ptr<MappedFile> open(const std::string &path, LoadMode mode);
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const uint8_t *data() const { return data_.get(); }
    size_t size_bytes() const { return size_bytes_; }
    const std::string &path() const { return path_; }
    LoadMode mode() const { return mode_; }
    // LoadError when the file of that name is no longer the one that was opened (size, time, inode).
    void check_unchanged() const;
    // What is the same for a file that nobody wrote to since: device, inode, size, times of modification and change.
    // Empty while the file is so young that a write might not show in its times.
    std::string identity() const;

  private:
    MappedFile() = default;
    void map(const File &file);
    void read(const File &file);
    std::string path_;
    LoadMode mode_ = LoadMode::mmap;
    FileInfo info_{};
    bool is_young_ = false;
    std::shared_ptr<uint8_t> data_;
    size_t size_bytes_ = 0;
};

} // namespace quire
