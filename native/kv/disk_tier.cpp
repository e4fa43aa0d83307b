#include "kv/disk_tier.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/paths.h"
#include "core/system.h"
#include "kv/cache_ledger.h"

namespace quire {
namespace fs = std::filesystem;
namespace {

constexpr auto leftovers_after = std::chrono::minutes(1); // a file that is being written is younger
constexpr size_t most_known = size_t{1} << 20; // entries
constexpr size_t kept_buffer_bytes = size_t{32} << 20;
constexpr const char *speeds_name = "speeds", *speeds_format = "quire speeds 1 %lg %lg\n";
constexpr const char *unfinished_prefix = "quire-", *unfinished_suffix = ".part", *entry_suffix = ".kv";

// With access for this user alone.  False: it is not there.
bool make_folder(const fs::path &path) {
    std::error_code error;
    if (fs::create_directories(path, error)) fs::permissions(path, fs::perms::owner_all, error);
    return fs::is_directory(path, error);
}

struct FoundEntry {
    fs::path path;
    fs::file_time_type used;
    uint64_t size_bytes;
};

// The entries of all models.  What writers left behind is removed.
std::vector<FoundEntry> entries_of(const fs::path &folder) {
    std::vector<FoundEntry> found;
    std::error_code error;
    const auto now = fs::file_time_type::clock::now();
    fs::recursive_directory_iterator each(folder, fs::directory_options::skip_permission_denied, error);
    for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
        std::error_code gone; // others remove files, too
        const fs::path &path = each->path();
        const bool is_part = path.extension() == unfinished_suffix;
        if (!is_part && path.extension() != entry_suffix) continue;
        const auto used = each->last_write_time(gone);
        const uint64_t size_bytes = gone ? 0 : each->file_size(gone);
        if (gone) continue;
        if (is_part && now - used > leftovers_after)
            fs::remove(path, gone);
        else
            found.push_back({path, is_part ? fs::file_time_type::max() : used, size_bytes});
    }
    return found;
}

} // namespace

DiskTier::DiskTier(const std::string &folder, uint64_t budget_bytes, const TierIdentity &identity, TierSizes sizes)
    : folder_(path_from(folder)), own_folder_(folder_ / identity_name(identity)), budget_bytes_(budget_bytes),
      identity_(identity), sizes_(std::move(sizes)), buffers_(std::make_shared<BufferPool>(kept_buffer_bytes)),
      written_since_scan_(budget_bytes) {
    if (!make_folder(folder_)) throw LoadError("cache-disk", cat("cannot create the folder ", folder));
    std::error_code error;
    const fs::perms others = fs::perms::group_write | fs::perms::others_write;
    if ((fs::status(folder_, error).permissions() & others) != fs::perms::none || error)
        throw LoadError("cache-disk",
                        cat("other users may write to ", folder, ": use a folder of your own (chmod 700)"));
    if (!make_folder(own_folder_)) throw LoadError("cache-disk", cat("cannot write to the folder ", folder));
    stats_.budget_bytes = budget_bytes;
}

DiskTier::Path DiskTier::path_of(const TierKey &key) const {
    const std::string name = entry_name(key);
    return own_folder_ / name.substr(0, 2) / (name + entry_suffix);
}

bool DiskTier::is_known(const TierKey &key) const {
    std::lock_guard lock(mutex_);
    return known_.contains(key);
}

bool DiskTier::has(const TierKey &key) {
    std::error_code error;
    return fs::exists(path_of(key), error);
}

void DiskTier::touch(const TierKey &key) {
    std::error_code error;
    fs::last_write_time(path_of(key), fs::file_time_type::clock::now(), error);
}

TierData DiskTier::read(const Path &path, const TierKey &key) const {
    const auto expected = sizes_.of(key.group);
    const File file = File::open(text_of(path));
    const auto info = file.is_open() ? file.info() : std::nullopt;
    if (!expected || !info || !info->is_trusted || info->size_bytes != record_header_bytes + *expected) return {};
    RecordHeader header;
    if (file.read_at(header.data(), header.size(), 0) != static_cast<int64_t>(header.size())) return {};
    const auto record = read_header(header, identity_);
    if (!record || record->key != key || record->size_bytes != *expected) return {};
    TierData data = buffers_->take(*expected);
    size_t n_read = 0;
    while (n_read < *expected) {
        const int64_t n = file.read_at(data.fill() + n_read, *expected - n_read, record_header_bytes + n_read);
        if (n <= 0) return {};
        n_read += static_cast<size_t>(n);
    }
    const std::span<const uint8_t> contents(data.data(), data.size_bytes());
    return checksum(contents) == record->checksum && sizes_.are_numbers(key.group, contents) ? data : TierData();
}

TierData DiskTier::get(const TierKey &key) {
    const Path path = path_of(key);
    TierData data = read(path, key);
    std::error_code error;
    const bool is_damaged = !data && fs::exists(path, error);
    if (is_damaged) fs::remove(path, error);
    std::lock_guard lock(mutex_);
    stats_.n_damaged += is_damaged;
    if (!data) {
        known_.erase(key);
        return {};
    }
    if (known_.size() < most_known) known_.insert(key);
    ++stats_.n_read;
    stats_.read_bytes += static_cast<int64_t>(data.size_bytes());
    return data;
}

bool DiskTier::write(const Path &path, const TierKey &key, const TierData &data) {
    std::error_code error;
    if (!make_folder(path.parent_path())) return false;
    const uint64_t size_bytes = record_header_bytes + data.size_bytes();
    const fs::space_info space = fs::space(own_folder_, error);
    if (!error && space.available < size_bytes) return false;
    const std::span<const uint8_t> contents(data.data(), data.size_bytes());
    return write_whole(path, record_header(identity_, key, contents), contents);
}

bool DiskTier::write_whole(const Path &path, std::span<const uint8_t> begin, std::span<const uint8_t> rest) {
    std::error_code error;
    std::string part;
    File file = File::create(text_of(path.parent_path()), unfinished_prefix, unfinished_suffix, part);
    if (!file.is_open()) return false;
    const bool is_whole =
        file.write_at(begin.data(), begin.size(), 0) && file.write_at(rest.data(), rest.size(), begin.size());
    file.close();
    if (is_whole) fs::rename(path_from(part), path, error);
    if (!is_whole || error) {
        remove_file(part);
        return false;
    }
    return true;
}

std::optional<TierSpeeds> DiskTier::speeds() const {
    const File file = File::open(text_of(own_folder_ / speeds_name));
    const auto info = file.is_open() ? file.info() : std::nullopt;
    char text[128] = {};
    if (!info || !info->is_trusted || file.read_at(text, sizeof text - 1, 0) < 1) return std::nullopt;
    TierSpeeds speeds;
    if (std::sscanf(text, speeds_format, &speeds.read_s_per_byte, &speeds.compute_s_per_token) != 2)
        return std::nullopt;
    const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
    if (!is_time(speeds.read_s_per_byte) || !is_time(speeds.compute_s_per_token)) return std::nullopt;
    return speeds;
}

void DiskTier::keep(const TierSpeeds &speeds) {
    char text[128];
    const int n = std::snprintf(text, sizeof text, speeds_format, speeds.read_s_per_byte, speeds.compute_s_per_token);
    std::lock_guard one(writing_);
    write_whole(own_folder_ / speeds_name, {reinterpret_cast<const uint8_t *>(text), static_cast<size_t>(n)}, {});
}

void DiskTier::put(const TierKey &key, const TierData &data) {
    std::lock_guard one(writing_);
    const uint64_t size_bytes = record_header_bytes + data.size_bytes();
    const Path path = path_of(key);
    const bool fits = size_bytes <= budget_bytes_ && sizes_.of(key.group) == data.size_bytes() &&
                      sizes_.are_numbers(key.group, {data.data(), data.size_bytes()});
    bool is_there = false, is_new = false;
    if (fits) {
        is_there = has(key);
        if (is_there)
            touch(key);
        else {
            written_since_scan_ += size_bytes;
            bool is_full = false;
            {
                std::lock_guard lock(mutex_);
                is_full = stats_.used_bytes + size_bytes > budget_bytes_;
            }
            // Others write, too: what they wrote shows in a scan.
            if (is_full || written_since_scan_ > budget_bytes_ / 32) make_room(size_bytes);
            is_there = is_new = write(path, key, data);
        }
    }
    std::lock_guard lock(mutex_);
    stats_.n_dropped += !is_there;
    if (is_there && known_.size() < most_known) known_.insert(key);
    if (!is_new) return;
    stats_.used_bytes += size_bytes;
    ++stats_.n_written;
    stats_.written_bytes += static_cast<int64_t>(data.size_bytes());
}

// Down to 15/16 of the budget or less, for this entry and those that others write at the same time.
void DiskTier::make_room(uint64_t size_bytes) {
    std::vector<FoundEntry> entries = entries_of(folder_);
    uint64_t used = 0;
    for (const FoundEntry &entry : entries) used += entry.size_bytes;
    const uint64_t target = budget_bytes_ - std::max(size_bytes, budget_bytes_ / 16);
    int64_t n_evicted = 0;
    if (used > target) {
        std::ranges::sort(entries, {}, &FoundEntry::used);
        for (const FoundEntry &entry : entries) {
            if (used <= target || entry.used == fs::file_time_type::max()) break;
            std::error_code error;
            if (fs::remove(entry.path, error)) ++n_evicted;
            used -= entry.size_bytes;
        }
    }
    written_since_scan_ = 0;
    std::lock_guard lock(mutex_);
    if (n_evicted > 0) known_.clear(); // some of them are gone
    stats_.used_bytes = used;
    stats_.n_evicted += n_evicted;
}

TierStats DiskTier::stats() const {
    std::lock_guard lock(mutex_);
    TierStats stats = stats_;
    stats.n_entries = static_cast<int64_t>(known_.size());
    return stats;
}

} // namespace quire
