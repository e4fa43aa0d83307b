// A regular file in memory: mapped, mapped and locked, or copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/system.h"

namespace quire {

enum class LoadMode { mmap, copy, lock };

// The read-only bytes of a file.  Touching a mapped file that was truncated meanwhile ends the process, so long-lived
// users call check_unchanged().
class MappedFile {
  public:
    // Throws LoadError unless `path` is a readable regular file, CapacityError if locking is not allowed.
    static std::shared_ptr<MappedFile> open(const std::string &path, LoadMode mode);
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const uint8_t *data() const { return data_.get(); }
    size_t size_bytes() const { return size_bytes_; }
    const std::string &path() const { return path_; }
    LoadMode mode() const { return mode_; }
    // Throws LoadError if the path no longer refers to the opened file (device, inode, size, modification time).
    void check_unchanged() const;
    // A string that changes when the file is written to: device, inode, size, times of modification and change.
    // Empty if the file is so young that another write might not change its times.
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
