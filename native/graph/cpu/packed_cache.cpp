#include "graph/cpu/packed_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/paths.h"
#include "graph/cpu/weight_types.h"
#include "kernels/matmul/file_blocks.h"
#include "kv/blake2b.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr char magic[16] = "quire-packed-01";
constexpr size_t page_bytes = 4096; // matrices begin on one, so that each can be given back by itself
constexpr size_t copied_bytes = size_t{1} << 20;
constexpr std::string_view part_prefix = "quire-", part_suffix = ".part";

size_t page_aligned(size_t n) { return (n + page_bytes - 1) / page_bytes * page_bytes; }

std::string hex(const Digest &digest) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (uint8_t byte : digest) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

// A new file of its own name, to be renamed when it is whole.
File open_part(const std::string &directory, std::string &path) {
    return File::create(directory, part_prefix, part_suffix, path);
}

Digest digest_of(const void *data, size_t size_bytes, std::string_view use) {
    Blake2b hash(sizeof(Digest), use);
    hash.update(data, size_bytes);
    Digest digest;
    hash.finish(digest);
    return digest;
}

// A hash of what packing makes of arbitrary bytes, for every format in use: another layout has another one, and nobody
// need remember to count versions.
Digest layout_digest(const std::vector<PackedSource> &sources) {
    std::set<WeightFormat> formats;
    for (const PackedSource &source : sources) formats.insert(source.weights.format);
    Blake2b hash(sizeof(Digest), "quire layout");
    for (WeightFormat format : formats) {
        const int64_t n_in = file_block_columns(format) * 3, n_out = 70; // the last tile and chunk are not full
        const auto row_bytes = static_cast<size_t>(n_in / file_block_columns(format) * file_block_bytes(format));
        std::vector<uint8_t> rows(row_bytes * n_out);
        uint32_t state = 12345;
        for (uint8_t &byte : rows) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
        PackedWeights packed{format, n_out, n_in, nullptr};
        std::vector<uint8_t> tile(static_cast<size_t>(packed.tile_bytes()));
        hash.update_u64(static_cast<uint64_t>(packed.tile_bytes()));
        for (int64_t t = 0; t < packed.n_tiles(); ++t) {
            pack_tile(packed, rows.data(), t, tile.data());
            hash.update(tile.data(), tile.size());
        }
    }
    Digest digest;
    hash.finish(digest);
    return digest;
}

template <class Work> void on_threads(int n, Work work) {
    std::vector<std::thread> others;
    for (int i = 1; i < n; ++i) others.emplace_back(work);
    work();
    for (std::thread &thread : others) thread.join();
}

void append(std::vector<uint8_t> &to, const void *data, size_t size_bytes) {
    const size_t begin = to.size();
    to.resize(begin + size_bytes);
    std::memcpy(to.data() + begin, data, size_bytes);
}

void append_u64(std::vector<uint8_t> &to, uint64_t value) { append(to, &value, sizeof value); }

// Files left by killed processes; those of living ones are younger.
void remove_old_parts(const std::string &directory) {
    std::error_code error;
    for (const fs::directory_entry &entry : fs::directory_iterator(path_from(directory), error)) {
        const std::string name = text_of(entry.path().filename());
        if (!name.starts_with(part_prefix) || !name.ends_with(part_suffix)) continue;
        const auto written = entry.last_write_time(error);
        if (!error && fs::file_time_type::clock::now() - written > std::chrono::hours(1))
            fs::remove(entry.path(), error);
    }
}

} // namespace

PackedCache::PackedCache(PackedCacheOptions options, std::vector<PackedSource> sources, int n_threads)
    : options_(std::move(options)), sources_(std::move(sources)), n_threads_(n_threads),
      layout_(layout_digest(sources_)) {
    size_t at = page_aligned(header({}).size());
    for (const PackedSource &source : sources_) {
        offsets_.push_back(at);
        at = page_aligned(at + static_cast<size_t>(source.weights.size_bytes()));
    }
    offsets_.push_back(at);
}

PackedCache::~PackedCache() {
    if (!part_.empty()) give_up("was interrupted");
}

std::vector<uint8_t> PackedCache::header(const Digest &contents) const {
    std::vector<uint8_t> bytes;
    append(bytes, magic, sizeof magic);
    append(bytes, layout_.data(), layout_.size());
    append(bytes, contents.data(), contents.size());
    append_u64(bytes, sources_.size());
    for (const PackedSource &source : sources_) {
        append_u64(bytes, static_cast<uint64_t>(source.weights.format) << 1 | (source.weights.is_rounded ? 1 : 0));
        append_u64(bytes, static_cast<uint64_t>(source.weights.n_out));
        append_u64(bytes, static_cast<uint64_t>(source.weights.n_in));
    }
    return bytes;
}

std::string PackedCache::path_of(const Digest &contents) const {
    const std::vector<uint8_t> bytes = header(contents);
    return options_.directory + "/" + hex(digest_of(bytes.data(), bytes.size(), "quire header")) + ".packed";
}

// Depends on the shapes too: two models may lie in one file.
std::string PackedCache::remembered_path() const {
    std::vector<uint8_t> bytes = header({});
    append(bytes, options_.source.data(), options_.source.size());
    return options_.directory + "/" + hex(digest_of(bytes.data(), bytes.size(), "quire source")) + ".source";
}

bool PackedCache::recall(Digest &contents) const {
    std::ifstream file(path_from(remembered_path()), std::ios::binary);
    return file.read(reinterpret_cast<char *>(contents.data()), sizeof contents) && file.peek() == EOF;
}

void PackedCache::remember(const Digest &contents) {
    if (options_.source.empty()) return;
    std::string part;
    File file = open_part(options_.directory, part);
    if (!file.is_open()) return; // it will be hashed again
    const bool done = file.write_at(contents.data(), sizeof contents, 0);
    file.close();
    if (!done || !rename_over(part, remembered_path())) remove_file(part);
}

// A tree of hashes, so that threads share the work: pieces, then all of their hashes in order.
Digest PackedCache::hash_sources() const {
    struct Piece {
        const uint8_t *data;
        size_t size_bytes;
        Digest digest;
    };
    std::vector<Piece> pieces;
    for (const PackedSource &source : sources_) {
        for (size_t at = 0, size = source.tensor->size_bytes(); at < size; at += copied_bytes)
            pieces.push_back({source.tensor->data() + at, std::min(copied_bytes, size - at), {}});
    }
    auto hash = [&](Piece &piece) {
        piece.digest = digest_of(piece.data, piece.size_bytes, "quire piece");
        if (options_.source_is_mapped)
            give_back(piece.data, piece.size_bytes); // never beside a copy of the packed ones
    };
    std::atomic<size_t> next{0};
    on_threads(n_threads_, [&] {
        for (size_t i; (i = next.fetch_add(1)) < pieces.size();) hash(pieces[i]);
    });
    Blake2b all(sizeof(Digest), "quire weights");
    for (const Piece &piece : pieces) all.update(piece.digest.data(), piece.digest.size());
    Digest digest;
    all.finish(digest);
    return digest;
}

bool PackedCache::tiles_agree(const MappedFile &file) const {
    std::vector<uint8_t> fresh;
    for (size_t i = 0; i < sources_.size(); ++i) {
        const PackedWeights &weights = sources_[i].weights;
        fresh.resize(static_cast<size_t>(weights.tile_bytes()));
        for (int64_t tile : {int64_t{0}, weights.n_tiles() - 1}) {
            pack_tile(weights, *sources_[i].tensor, tile, fresh.data());
            const uint8_t *found = file.data() + offsets_[i] + static_cast<size_t>(tile) * fresh.size();
            if (std::memcmp(found, fresh.data(), fresh.size()) != 0) return false;
        }
        // The system may map a large page for one tile: all of the file, beside its packed copy.
        if (options_.source_is_mapped) give_back(sources_[i].tensor->data(), sources_[i].tensor->size_bytes());
    }
    return true;
}

std::shared_ptr<MappedFile> PackedCache::open(const Digest &contents) {
    const std::string path = path_of(contents);
    const File found = File::open(path);
    if (!found.is_open()) return nullptr;
    const std::optional<FileInfo> info = found.info();
    auto ignored = [&](const char *why) {
        notes_.push_back(cat("ignored '", path, "': it ", why));
        return nullptr;
    };
    if (!info) return ignored("is no regular file");
    if (!info->is_trusted) return ignored("belongs to another user");
    if (info->size_bytes != offsets_.back()) return ignored("has another size than it should have");
    try {
        std::shared_ptr<MappedFile> file = MappedFile::open(path, options_.load);
        const std::vector<uint8_t> expected = header(contents);
        if (file->size_bytes() != offsets_.back() || std::memcmp(file->data(), expected.data(), expected.size()) != 0) {
            return ignored("does not begin as it should");
        }
        if (!tiles_agree(*file)) return ignored("does not hold the matrices of this model");
        return file;
    } catch (const Error &error) {
        return ignored(error.what());
    }
}

std::shared_ptr<MappedFile> PackedCache::find() {
    const bool known = !options_.source.empty() && recall(contents_);
    if (known) {
        if (std::shared_ptr<MappedFile> file = open(contents_)) return file;
    }
    const Digest remembered = contents_;
    contents_ = hash_sources();
    std::shared_ptr<MappedFile> file = known && remembered == contents_ ? nullptr : open(contents_);
    if (file) remember(contents_);
    return file;
}

bool PackedCache::begin() {
    std::error_code error;
    fs::create_directories(path_from(options_.directory), error);
    remove_old_parts(options_.directory);
    file_ = open_part(options_.directory, part_);
    if (!file_.is_open()) {
        notes_.push_back(cat("cannot keep packed weights in '", options_.directory, "': ", system_error()));
        part_.clear();
        return false;
    }
    const std::vector<uint8_t> bytes = header(contents_);
    return put(bytes.data(), bytes.size(), 0);
}

bool PackedCache::put(const void *data, size_t size_bytes, size_t offset) {
    if (file_.write_at(data, size_bytes, offset)) return true;
    give_up(cat("needs ", offsets_.back(), " bytes: ", system_error()));
    return false;
}

void PackedCache::give_up(const std::string &why) {
    notes_.push_back(cat("cannot keep packed weights in '", options_.directory, "': the file ", why));
    file_.close();
    remove_file(part_);
    part_.clear();
}

void PackedCache::write(const PackedWeights &weights) {
    const size_t i = n_written_++;
    if (i == 0 && !begin()) return;
    if (!part_.empty()) put(weights.data, static_cast<size_t>(weights.size_bytes()), offsets_[i]);
}

void PackedCache::end() {
    if (part_.empty()) return;
    // On disk before it has its name: after a loss of power it is complete or absent.
    if (!file_.end_at(offsets_.back())) return give_up(cat("needs ", offsets_.back(), " bytes: ", system_error()));
    file_.close();
    if (!rename_over(part_, path_of(contents_))) return give_up(system_error());
    part_.clear();
    remember(contents_);
}

} // namespace quire
