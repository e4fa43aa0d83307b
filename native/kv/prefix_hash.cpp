#include "kv/prefix_hash.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.h"
#include "kv/blake2b.h"

namespace quire {
namespace {

void update_framed(Blake2b &hash, const void *data, size_t size_bytes) {
    hash.update_u64(size_bytes);
    hash.update(data, size_bytes);
}

} // namespace

PrefixHash block_hash(const std::optional<PrefixHash> &parent, std::span<const int32_t> tokens,
                      const PrefixContext &context) {
    static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");
    Blake2b hash(sizeof(PrefixHash::bytes), "quire.kv.block.1");
    update_framed(hash, parent ? parent->bytes.data() : nullptr, parent ? parent->bytes.size() : 0);
    update_framed(hash, tokens.data(), tokens.size_bytes());
    for (const std::string *part : {&context.adapter, &context.media, &context.salt})
        update_framed(hash, part->data(), part->size());
    PrefixHash result;
    hash.finish(result.bytes);
    return result;
}

SourceNames source_names(std::span<const int32_t> source, int block_tokens, const PrefixContext &context) {
    SourceNames names{{}, context};
    if (source.empty()) return names;
    const PrefixHash whole = block_hash(std::nullopt, source, context);
    names.context.media.append(reinterpret_cast<const char *>(whole.bytes.data()), whole.bytes.size());
    for (size_t begin = 0; begin < source.size(); begin += static_cast<size_t>(block_tokens)) {
        const auto number = static_cast<int32_t>(names.blocks.size());
        names.blocks.push_back(block_hash(whole, {&number, 1}, context));
    }
    return names;
}

HashChain::HashChain(PrefixContext context, int block_tokens, std::vector<MediaName> media)
    : context_(std::move(context)), media_(std::move(media)), block_tokens_(static_cast<size_t>(block_tokens)) {
    if (block_tokens < 1)
        throw ShapeError("prefix_hash", cat("block_tokens is ", block_tokens, ": expected a positive number"));
}

void HashChain::cut(int64_t n_tokens) {
    hashes_.resize(std::min(hashes_.size(), static_cast<size_t>(n_tokens) / block_tokens_));
}

PrefixContext HashChain::context_of_block(int64_t begin, int64_t end) const {
    PrefixContext context = context_;
    const auto add = [&context](int64_t number) {
        context.media.append(reinterpret_cast<const char *>(&number), sizeof number);
    };
    for (const LateAdapter &late : context_.late) {
        if (late.first >= end) continue;
        const int64_t first = std::max<int64_t>(0, late.first - begin); // in the block
        context.adapter += late.name;
        context.adapter.append(reinterpret_cast<const char *>(&first), sizeof first);
    }
    for (const MediaName &media : media_) {
        if (media.end <= begin || media.begin >= end) continue;
        // Which of its rows lie where in the block.
        add(media.begin - begin);
        add(static_cast<int64_t>(media.digest.size()));
        context.media += media.digest;
    }
    return context;
}

std::span<const PrefixHash> HashChain::of(std::span<const int32_t> tokens) {
    const size_t n_full = tokens.size() / block_tokens_;
    while (hashes_.size() < n_full) {
        const auto parent = hashes_.empty() ? std::nullopt : std::optional(hashes_.back());
        const size_t begin = hashes_.size() * block_tokens_;
        const std::span<const int32_t> block = tokens.subspan(begin, block_tokens_);
        if (media_.empty() && context_.late.empty()) {
            hashes_.push_back(block_hash(parent, block, context_));
            continue;
        }
        const auto first = static_cast<int64_t>(begin), end = static_cast<int64_t>(begin + block_tokens_);
        hashes_.push_back(block_hash(parent, block, context_of_block(first, end)));
    }
    return std::span(hashes_).first(n_full);
}

} // namespace quire
