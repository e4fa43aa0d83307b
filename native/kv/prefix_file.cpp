#include "kv/prefix_file.h"

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/paths.h"

namespace quire {
namespace {

constexpr char prefix_magic[8] = {'q', 'u', 'i', 'r', 'e', 'p', 'f', '\n'};
constexpr uint64_t file_version = 1;
constexpr uint64_t most_note_bytes = uint64_t{64} << 20;

struct FileHeader {
    char magic[8];
    uint64_t version;
    uint8_t identity[32];
    int64_t n_tokens;
    uint64_t n_records, note_bytes;
    uint64_t seal; // checksum of all before, and of the note
};
static_assert(sizeof(FileHeader) == 80);

uint64_t seal_of(const FileHeader &header, const std::string &note) {
    std::vector<uint8_t> sealed(offsetof(FileHeader, seal) + note.size());
    std::memcpy(sealed.data(), &header, offsetof(FileHeader, seal));
    std::memcpy(sealed.data() + offsetof(FileHeader, seal), note.data(), note.size());
    return checksum(sealed);
}

bool read_whole(const File &file, void *to, size_t size_bytes, uint64_t offset) {
    auto *bytes = static_cast<uint8_t *>(to);
    while (size_bytes > 0) {
        const int64_t n = file.read_at(bytes, size_bytes, offset);
        if (n <= 0) return false;
        bytes += n;
        offset += static_cast<uint64_t>(n);
        size_bytes -= static_cast<size_t>(n);
    }
    return true;
}

std::pair<FileHeader, std::string> read_file_header(const File &file, const std::string &path) {
    if (!file.is_open()) throw LoadError("prefix", cat("cannot open ", path, ": ", system_error()));
    FileHeader header;
    const bool is_known = read_whole(file, &header, sizeof header, 0) &&
                          std::memcmp(header.magic, prefix_magic, sizeof prefix_magic) == 0 &&
                          header.version == file_version && header.note_bytes <= most_note_bytes;
    if (!is_known) throw LoadError("prefix", cat("not a saved prefix of this version of Quire: ", path));
    std::string note(header.note_bytes, '\0');
    if (!read_whole(file, note.data(), note.size(), sizeof header) || header.seal != seal_of(header, note))
        throw LoadError("prefix", cat("damaged file: ", path));
    return {header, std::move(note)};
}

} // namespace

PrefixFileWriter::PrefixFileWriter(const std::string &path, const TierIdentity &identity, std::string note)
    : path_(path), note_(std::move(note)), identity_(identity), at_(sizeof(FileHeader) + note_.size()) {
    if (note_.size() > most_note_bytes)
        throw RequestError("prefix", cat("the note has ", note_.size(), " bytes: expected at most ", most_note_bytes));
    const std::filesystem::path folder = path_from(path).parent_path();
    file_ = File::create(folder.empty() ? "." : text_of(folder), "quire-", ".part", part_);
    if (!file_.is_open()) throw LoadError("prefix", cat("cannot write ", path, ": ", system_error()));
}

PrefixFileWriter::~PrefixFileWriter() {
    if (!file_.is_open()) return;
    file_.close();
    remove_file(part_);
}

void PrefixFileWriter::write(const void *from, size_t size_bytes) {
    if (!file_.write_at(from, size_bytes, at_))
        throw CapacityError("prefix", cat("cannot write ", path_, ": ", system_error()));
    at_ += size_bytes;
}

void PrefixFileWriter::add(const TierKey &key, const TierData &data) {
    const RecordHeader header = record_header(identity_, key, {data.data(), data.size_bytes()});
    write(header.data(), header.size());
    write(data.data(), data.size_bytes());
    ++n_records_;
}

uint64_t PrefixFileWriter::finish(int64_t n_tokens) {
    FileHeader header{};
    std::memcpy(header.magic, prefix_magic, sizeof prefix_magic);
    header.version = file_version;
    std::memcpy(header.identity, identity_.bytes.data(), sizeof header.identity);
    header.n_tokens = n_tokens;
    header.n_records = n_records_;
    header.note_bytes = note_.size();
    header.seal = seal_of(header, note_);
    const bool is_written = file_.write_at(&header, sizeof header, 0) &&
                            file_.write_at(note_.data(), note_.size(), sizeof header) && file_.end_at(at_);
    if (!is_written) throw CapacityError("prefix", cat("cannot write ", path_, ": ", system_error()));
    if (!rename_over(part_, path_)) throw LoadError("prefix", cat("cannot write ", path_, ": ", system_error()));
    file_.close();
    return at_;
}

PrefixFileReader::PrefixFileReader(const std::string &path, const TierIdentity &identity, TierSizes sizes)
    : path_(path), identity_(identity), sizes_(std::move(sizes)), file_(File::open(path)) {
    const auto [header, note] = read_file_header(file_, path);
    if (std::memcmp(header.identity, identity.bytes.data(), sizeof header.identity) != 0)
        throw LoadError("prefix", cat("saved with another model, adapter, cache type or device: ", path));
    n_tokens_ = header.n_tokens;
    n_left_ = header.n_records;
    at_ = sizeof header + note.size();
}

std::optional<TierEntry> PrefixFileReader::next() {
    while (n_left_ > 0) {
        --n_left_;
        RecordHeader header;
        const bool is_there = read_whole(file_, header.data(), header.size(), at_);
        const auto info = is_there ? read_header(header, identity_) : std::nullopt;
        if (!info || sizes_.of(info->key.group) != info->size_bytes)
            throw LoadError("prefix", cat("damaged file: ", path_));
        TierData data(info->size_bytes);
        at_ += header.size();
        const std::span<const uint8_t> contents(data.data(), data.size_bytes());
        if (!read_whole(file_, data.fill(), data.size_bytes(), at_) || checksum(contents) != info->checksum)
            throw LoadError("prefix", cat("damaged file: ", path_));
        at_ += data.size_bytes();
        if (sizes_.are_numbers(info->key.group, contents)) return TierEntry{info->key, std::move(data), TierKind::disk};
    }
    return std::nullopt;
}

std::string PrefixFileReader::note_of(const std::string &path) {
    return read_file_header(File::open(path), path).second;
}

} // namespace quire
