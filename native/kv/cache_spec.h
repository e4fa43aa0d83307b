// The rows and states that layers keep between steps: declared by the model file, and used unchanged by tracer, store,
// scheduler and bindings.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/block_tokens.h"
#include "core/dtype.h"

namespace quire {

// How long a row is needed.
struct CacheLifetime {
    int window = 0, chunk = 0;
    bool of_source = false; // rows of the source text, all of which each token attends to
    bool bidirectional_media =
        false; // rows of an image attend to all of it, later rows too, as far as a window reaches
    auto operator<=>(const CacheLifetime &) const = default;
    bool keeps_all() const { return window == 0 && chunk == 0 && !of_source; }
    // The first position that a row at `position` attends to.
    int64_t first_seen(int64_t position) const {
        if (chunk > 0) return position / chunk * chunk;
        return window > 0 && position >= window ? position - window + 1 : 0;
    }
};

// K and V of every token.
struct CacheRows {
    int n_kv_head, head_dim, v_head_dim;
    int window = 0; // n: the last n tokens are attended to, the row itself included; 0: all of the past
    int chunk = 0;  // n: only tokens of the row's own chunk [i * n, (i + 1) * n); 0: all of the past
    bool v_in_k = false; // V is the first v_head_dim numbers of K, of one head: there is no array of V
    // One row for every token of the source text instead: written when it is encoded, and attended to as a whole.
    bool of_source = false;
    bool bidirectional_media = false; // rows of an image attend to its later rows too
    // Each n tokens share one row, written with the last of them: n divides the tokens of a block or is a multiple.
    int every = 1;
    int block_rows(int block_tokens = kv_block_tokens) const { return block_tokens / std::min(every, block_tokens); }
    CacheLifetime lifetime() const { return {window, chunk, of_source, bidirectional_media}; }
    bool operator==(const CacheRows &) const = default;
};

// Latent attention (DeepSeek-AI 2024): a row has `rank` numbers, which are V too, then `n_rot` rotated ones.
constexpr CacheRows latent_rows(int rank, int n_rot) {
    return {.n_kv_head = 1, .head_dim = rank + n_rot, .v_head_dim = rank, .v_in_k = true};
}

// Recurrent state: n numbers (f32) of each sequence, zero where a sequence begins.
struct CacheState {
    std::string name;
    int64_t n;
    bool operator==(const CacheState &) const = default;
};

// A state by its layer, and its number there.
struct StatePlace {
    int layer, index;
    auto operator<=>(const StatePlace &) const = default;
};

// One layer.  It may keep rows, states, both (attention beside a recurrence) or nothing.
struct CacheSpec {
    std::optional<CacheRows> rows;
    std::vector<CacheState> states;
    bool operator==(const CacheSpec &) const = default;
};

// Layers whose rows live equally long.  They share block tables.
struct CacheGroup {
    CacheLifetime lifetime;
    std::vector<int> layers;
    size_t block_bytes = 0; // a block in all of the group's layers
};

// Types of K and of V.
struct CacheTypes {
    DType k, v;
    CacheTypes(DType both) : k(both), v(both) {}
    CacheTypes(DType k_, DType v_) : k(k_), v(v_) {}
    bool operator==(const CacheTypes &) const = default;
    // True if a row is something else than its numbers, which only Quire's own kernels read.
    bool are_coded() const;
};

// "q8_0", or "q8_0/q4_0" for K and V apart; UnsupportedError unless they are f32, f16, bf16, q8_0, q5_1 or q4_0 and,
// where they differ, none of them f32 or bf16.
CacheTypes cache_types_from_name(const std::string &name);
std::string name(CacheTypes types);

// Bytes of `n_tokens` tokens of one head.  q8_0 names the 8-bit cache of core/q8_layout.h, as llama.cpp's users expect;
// its scales are per token and head, not per 32 values.
size_t cache_head_bytes(DType dtype, int head_dim, int n_tokens);

// The layers of a model with the types of K and V.  Sizes only; the memory is kv_store's.
class CacheLayout {
  public:
    // ShapeError when a size is not positive, a layer has a window and chunks, or the types cannot hold a head's row.
    CacheLayout(std::vector<CacheSpec> layers, CacheTypes types, int block_tokens = kv_block_tokens);
    const std::vector<CacheSpec> &layers() const { return layers_; }
    CacheTypes types() const { return types_; }
    int block_tokens() const { return block_tokens_; } // kv_block_tokens but in tests of what has no kernels
    const std::vector<CacheGroup> &groups() const { return groups_; } // by lifetime; full attention comes first
    std::optional<int> group_of(int layer) const; // none where the layer keeps no rows
    std::optional<int> source_group() const; // that of the source text's rows, if the model reads one
    size_t state_bytes() const { return state_bytes_; } // per sequence, in all layers
    size_t block_bytes() const; // a block in every group
    size_t k_block_bytes(int layer) const;
    size_t v_block_bytes(int layer) const; // 0 where V is in K

  private:
    std::vector<CacheSpec> layers_;
    CacheTypes types_;
    int block_tokens_;
    std::vector<CacheGroup> groups_;
    size_t state_bytes_ = 0;
};

} // namespace quire
