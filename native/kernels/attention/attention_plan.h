// How the attention of a step is cut into work items.  Any cut gives the same bits; this one
// - puts queries that read the same memory into one tile: the rows of a prompt, and those of sequences whose block tables
//   begin alike, so that K and V of shared blocks are read once for all of them;
// - lets a row alone take many kv heads at a time: a block's heads lie side by side, and memory is read fastest in order;
// - hands out long contexts by chunks where there are few tiles, so that all workers have something to do.
//
// Invariants: rows of a sequence are neighbours and ascend; tiles and items cover each row and head once; counters are
// zero between uses.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/paged_attention.h"

namespace quire {

struct AttentionTile;

class AttentionPlan {
  public:
    // What cutting depends on: layers that agree here share it.
    struct Cut {
        int n_head, n_kv_head, v_head_dim, window, chunk;
        bool both_ways;
        KvType k_type, v_type;
        bool operator==(const Cut &) const = default;
    };
    struct Tile {
        int first_row, n_rows; // of rows()
        int first_chunk, last_chunk; // that any of them sees
        int first_item;
        bool is_split; // an item for each chunk; else one for all
        int64_t partials;
        int counter;
    };
    struct Row {
        int32_t sequence, row; // of the batch
    };
    // An item: a tile's queries of one kv head (of a part of its query heads, where they are many), or a row's of several.
    struct Item {
        const Tile *tile;
        int kv_head, n_kv_heads, first_head, n_heads;
        int first_chunk, last_chunk;
        float *partials; // of all of the tile's chunks; null when not split
        std::atomic<int> *counter; // of chunks done; null when not split
    };
    class Layout {
      public:
        int n_items() const { return n_items_; }
        Item item(int index) const;

      private:
        friend class AttentionPlan;
        explicit Layout(const AttentionShape &shape);
        void cut(const KernelSet &kernels, const AttentionPlan &plan, const AttentionBatch &batch, int n_workers);
        void make_tiles(const AttentionPlan &plan, const AttentionBatch &batch, int tile_rows);
        void add_tile(const AttentionPlan &plan, const AttentionBatch &batch, int first, int end);
        int heads_of(const Tile &tile) const { return tile.n_rows > 1 ? 1 : together_; } // kv heads of an item
        int parts_of(const Tile &tile) const; // items of each chunk
        int count_items(bool by_chunks) const;
        void spread(int n_workers);
        void number_items();

        Cut cut_;
        int group_, tile_heads_, n_parts_;
        int most_together_, together_ = 1; // kv heads of an item of one row
        bool is_split_ = false;
        std::vector<Tile> tiles_;
        std::vector<float> partials_;
        std::unique_ptr<std::atomic<int>[]> counters_;
        int n_counters_ = 0, n_items_ = 0;
    };

    // Layers of this shape will attend.
    void add(const AttentionShape &shape);
    bool empty() const { return layouts_.empty(); }
    // Before each step, by one thread.  The batch's arrays must stay while the step runs.
    void begin(const KernelSet &kernels, const AttentionBatch &batch, int n_workers);
    const Layout *find(const AttentionShape &shape) const;
    const std::vector<Row> &rows() const { return rows_; }

  private:
    void order_sequences(const AttentionBatch &batch);

    std::vector<Layout> layouts_;
    std::vector<int32_t> order_;
    std::vector<Row> rows_;
    std::vector<bool> may_join_; // by row: it may share a tile with the row before it
};

} // namespace quire
