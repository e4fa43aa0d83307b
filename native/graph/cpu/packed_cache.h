// A file with the packed matrices of a model, so that the next start maps them and packs nothing.
//
// The file's name is the hash of its header.  The header holds a hash of the source of the matrices, the shapes, and
// a hash of this build's layout.  So a file is right or absent, whatever the model's file is called.
// Since hashing a model takes about as long as packing it, a small file beside it remembers the hash of a model file
// that the system says is the same (device, inode, size, times of modification and change).
// Nothing in the folder is trusted: the header must be the expected one byte for byte, the owner this user, and the
// first and last tile of every matrix are packed anew and compared.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/system.h"
#include "core/tensor.h"
#include "gguf/mapped_file.h"
#include "kernels/matmul/packed_weights.h"

namespace quire {

struct PackedCacheOptions {
    std::string directory;
    std::string source; // GgufReader::identity(); empty: not to be remembered
    LoadMode load; // how the file is brought to memory
    bool source_is_mapped; // the matrices are a mapped file's, whose pages can be read again
};

struct PackedSource {
    PackedWeights weights; // without data
    const Tensor *tensor;
};

using Digest = std::array<uint8_t, 32>;

// One model's file.  Any problem with it leaves a note and costs only time: no member throws for it.
class PackedCache {
  public:
    PackedCache(PackedCacheOptions options, std::vector<PackedSource> sources, int n_threads);
    ~PackedCache();
    PackedCache(const PackedCache &) = delete;
    PackedCache &operator=(const PackedCache &) = delete;

    // The file, complete and checked, or null.
    std::shared_ptr<MappedFile> find();
    size_t offset_of(size_t i) const { return offsets_[i]; } // where matrix i begins in the file
    // Write all matrices in order, then end: the file appears under its name, complete, or not at all.
    void write(const PackedWeights &weights);
    void end();

    // Notes for a user who looks for speed, a line each.
    const std::vector<std::string> &notes() const { return notes_; }

  private:
    std::vector<uint8_t> header(const Digest &contents) const;
    std::string path_of(const Digest &contents) const;
    std::string remembered_path() const;
    bool recall(Digest &contents) const;
    void remember(const Digest &contents);
    Digest hash_sources() const;
    std::shared_ptr<MappedFile> open(const Digest &contents);
    bool tiles_agree(const MappedFile &file) const;
    bool begin();
    bool put(const void *data, size_t size_bytes, size_t offset);
    void give_up(const std::string &why);

    PackedCacheOptions options_;
    std::vector<PackedSource> sources_;
    int n_threads_;
    Digest layout_;
    Digest contents_{};
    std::vector<size_t> offsets_; // and the end of the file
    std::vector<std::string> notes_;
    std::string part_; // the file that is being written; empty: none
    File file_;
    size_t n_written_ = 0;
};

} // namespace quire
