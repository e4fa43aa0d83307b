// Names of full blocks: a block is known by everything that its contents depend on.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/media_names.h"

namespace quire {

// 256 bits, so that nobody finds two prefixes of one name.
struct PrefixHash {
    std::array<uint8_t, 32> bytes{};
    bool operator==(const PrefixHash &) const = default;
};

struct PrefixHashHasher {
    size_t operator()(const PrefixHash &hash) const {
        size_t value;
        std::memcpy(&value, hash.bytes.data(), sizeof value); // a cryptographic hash is uniform already
        return value;
    }
};

// An adapter that changes tokens from a position on.
struct LateAdapter {
    std::string name;
    int64_t first;
};

// Everything beside the tokens that K and V depend on, and who may share them.
struct PrefixContext {
    std::string adapter; // name and version of the adapter, empty without one
    std::string media;   // digests of the images and sounds that the block holds rows of
    std::string salt;    // only equal salts share; by default the tenant's
    std::vector<LateAdapter> late = {}; // a chain of hashes adds those of a block to `adapter`
};

// Hash of a full block after `parent` (none: the first block).  BLAKE2b-256, personal "quire.kv.block.1", over parent,
// tokens (32 bits each), adapter, media and salt, each preceded by its length (64 bits), all little-endian.
PrefixHash block_hash(const std::optional<PrefixHash> &parent, std::span<const int32_t> tokens,
                      const PrefixContext &context);

// Rows of a source text depend on all of it.  So an encoder-decoder model's blocks of it, the last one included, which
// may not be full, are named by the whole text, and so is whatever follows it.
struct SourceNames {
    std::vector<PrefixHash> blocks;
    PrefixContext context; // for the text that answers it
};
SourceNames source_names(std::span<const int32_t> source, int block_tokens, const PrefixContext &context);

// The hashes of one sequence's full blocks, computed once each.
class HashChain {
  public:
    // Each block's context also names the media and late adapters that it holds rows of, so that text before them is
    // shared.
    HashChain(PrefixContext context, int block_tokens, std::vector<MediaName> media = {});
    // Hashes of the full blocks of `tokens`, which continue those of earlier calls.
    std::span<const PrefixHash> of(std::span<const int32_t> tokens);
    void cut(int64_t n_tokens); // tokens after the first n_tokens have changed
    const PrefixContext &context() const { return context_; }

  private:
    PrefixContext context_of_block(int64_t begin, int64_t end) const;

    PrefixContext context_;
    std::vector<MediaName> media_;
    size_t block_tokens_;
    std::vector<PrefixHash> hashes_;
};

} // namespace quire
