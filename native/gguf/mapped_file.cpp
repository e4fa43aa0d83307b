#include "gguf/mapped_file.h"

#include <algorithm>
#include <ctime>

#include "core/error.h"
#include "core/large_pages.h"

namespace quire {
namespace {

// File times advance with the kernel's ticks, on some file systems in steps of up to 2 s.
constexpr int64_t young_s = 2;

[[noreturn]] void fail(const std::string &path) {
    throw LoadError("file", cat("cannot read '", path, "': ", system_error()));
}

// Compare files without the inode's change time, which renaming or linking the file changes, too.
bool is_same(const FileInfo &a, const FileInfo &b) {
    return a.device == b.device && a.inode == b.inode && a.size_bytes == b.size_bytes && a.modified_s == b.modified_s &&
           a.modified_ns == b.modified_ns;
}

} // namespace

std::string MappedFile::identity() const {
    if (is_young_) return {};
    return cat(info_.device, ':', info_.inode, ':', info_.size_bytes, ':', info_.modified_s, '.', info_.modified_ns,
               ':', info_.changed_s, '.', info_.changed_ns);
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string &path, LoadMode mode) {
    if (path.find('\0') != std::string::npos) throw LoadError("file", "the path has a NUL character");
    const File file = File::open(path);
    if (!file.is_open()) fail(path);
    const std::optional<FileInfo> info = file.info();
    if (!info) throw LoadError("file", cat("not a regular file: '", path, "'"));
    if (info->size_bytes == 0) throw LoadError("file", cat("empty file: '", path, "'"));
    std::shared_ptr<MappedFile> mapped(new MappedFile);
    mapped->path_ = path;
    mapped->mode_ = mode;
    mapped->info_ = *info;
    mapped->is_young_ =
        std::max(info->changed_s, info->modified_s) + young_s > static_cast<int64_t>(std::time(nullptr));
    mapped->size_bytes_ = info->size_bytes;
    mapped->map(file);
    if (mode == LoadMode::copy) mapped->read(file);
    return mapped;
}

void MappedFile::map(const File &file) {
    const bool own = mode_ == LoadMode::copy;
    data_ = own ? new_pages(size_bytes_, true) : map_file(file, size_bytes_);
    if (!data_)
        throw CapacityError("file", cat("cannot load '", path_, "' (", size_bytes_, " bytes): ", system_error()));
    if (own) {
        advise_large_pages(data_.get(), size_bytes_); // every token reads all weights
    } else if (mode_ == LoadMode::lock && !lock_pages(data_.get(), size_bytes_)) {
        throw CapacityError("file", cat("cannot lock '", path_, "' in memory (", size_bytes_,
                                        " bytes, see ulimit -l): ", system_error()));
    }
}

void MappedFile::read(const File &file) {
    for (size_t done = 0; done < size_bytes_;) {
        const int64_t n = file.read_at(data_.get() + done, size_bytes_ - done, done);
        if (n < 0) fail(path_);
        if (n == 0)
            throw LoadError("file", cat("'", path_, "' was truncated from ", size_bytes_, " to ", done, " bytes"));
        done += static_cast<size_t>(n);
    }
    make_read_only(data_.get(), size_bytes_);
}

void MappedFile::check_unchanged() const {
    const File file = File::open(path_);
    if (!file.is_open()) fail(path_);
    const std::optional<FileInfo> info = file.info();
    if (!info || !is_same(*info, info_)) throw LoadError("file", cat("'", path_, "' changed while in use"));
}

} // namespace quire
