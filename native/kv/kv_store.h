// The bytes of the cache.  For every layer that keeps rows an array of K and one of V (but where V is in K), each
// [n_blocks][n_kv_head] of the tokens of a block; for every state an array [n_states][n].  How K and V lie in a block
// is a matter of whoever writes and reads them: the stock lowering keeps a token's heads side by side, our own
// kernels K by dimension (kernels/attention/paged_attention.h).
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kv/cache_spec.h"

namespace quire {

// How many of everything.  Block 0 of a group is its null block, state 0 is always zero.
struct CacheSizes {
    std::vector<int> n_blocks; // by group
    int n_states = 1; // slots
};

// Which layers' rows and which states a store has: where a model lies on several devices, each has a store.
struct KeptParts {
    std::vector<bool> rows = {}; // by layer; empty: all
    std::optional<std::set<StatePlace>> states = {}; // none: all
    bool has_rows(int layer) const { return rows.empty() || rows[static_cast<size_t>(layer)]; }
    bool has_state(StatePlace place) const { return !states || states->contains(place); }
};

// Fixed in place once made.  All bytes are zero at first, so that no block ever holds what is not a number.
class KvStore {
  public:
    // The tensors are seen as matrices [slots, n_kv_head * head_dim]: to the stock lowering a row is a token.  On
    // devices there are some more rows than the blocks have, as attention there wants round numbers; they are never
    // written.
    struct Rows {
        Tensor k, v; // one array where V is in K
        size_t k_block_bytes, v_block_bytes;
    };
    // CapacityError when there is no memory.  `queue`: of the device, which runs the graphs that read the cache:
    // copies are asked of it in their order.  Null on the CPU.
    KvStore(CacheLayout layout, CacheSizes sizes, Device device, ggml_backend *queue = nullptr, KeptParts kept = {},
            Memory memory = Memory::taken);

    const CacheLayout &layout() const { return layout_; }
    const CacheSizes &sizes() const { return sizes_; }
    const Rows &rows(int layer) const { return rows_.at(static_cast<size_t>(layer)).value(); }
    // f32 [n_states, n]; on devices there is one more slot, for padding rows, which is never read.
    const Tensor &state(StatePlace place) const {
        return states_.at(static_cast<size_t>(place.layer)).at(static_cast<size_t>(place.index)).value();
    }
    size_t size_bytes() const { return size_bytes_; }
    void copy_block(int group, int from, int to) const;
    void copy_state(int from, int to) const;
    // The block's or slot's contents are not needed any more: its pages may go back to the system.
    void discard_block(int group, int block) const;
    void discard_state(int slot) const;
    // The contents of a block in all layers of the group: for each layer its K, then its V.  A store that has a part of
    // the layers reads and writes those alone, in their places.
    void read_block(int group, int block, uint8_t *to) const;
    void write_block(int group, int block, const uint8_t *from) const;
    void read_state(int slot, uint8_t *to) const; // each state of each layer
    void write_state(int slot, const uint8_t *from) const;

  private:
    struct Copy {
        const Tensor *tensor;
        size_t from, to, bytes;
    };
    // A block or a state, asked of the device and not known to be there: group, or below 0, and its number.
    using Place = std::pair<int, int>;
    void copy(const std::vector<Copy> &copies, Place from, Place to) const;
    void keep_order(Place from, Place to) const;
    struct Part { // one array's part of the contents of a block or a state
        const Tensor *tensor;
        size_t at, offset, bytes; // there, and within the contents
    };
    std::vector<Part> parts_of_block(int group, int block) const;
    std::vector<Part> parts_of_state(int slot) const;
    void read(const std::vector<Part> &parts, uint8_t *to) const;
    void write(const std::vector<Part> &parts, const uint8_t *from) const;
    void check_block(int group, int block) const;
    void check_state(int slot) const;
    template <class Use> void for_states(const Use &use) const { // use(array, bytes of a slot)
        for (const auto &layer : states_)
            for (const std::optional<Tensor> &state : layer)
                if (state) use(*state, static_cast<size_t>(state->shape()[1]) * sizeof(float));
    }
    CacheLayout layout_;
    CacheSizes sizes_;
    KeptParts kept_;
    ggml_backend *queue_;
    mutable std::vector<Place> touched_; // by copies since it was last waited for the device
    size_t size_bytes_ = 0;
    std::vector<std::optional<Rows>> rows_; // by layer
    std::vector<std::vector<std::optional<Tensor>>> states_; // by layer
};

} // namespace quire
