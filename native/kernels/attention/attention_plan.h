// Cuts the attention of a step into work items.  Any cut gives the same bits.  This one
// - puts queries that read the same memory into one tile: the rows of a prompt, and rows of sequences whose block
//   tables share a prefix, so that K and V of shared blocks are read once for all of them;
// - gives a single row many kv heads at a time, because a block's heads are contiguous and sequential reads are
//   fastest;
// - cuts long contexts into chunks if there are few tiles, so that all workers have something to do.
//
// Invariants: rows of a sequence are contiguous and ascend; tiles and items cover each row and head once; counters are
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
    // The properties of a layer that the cut depends on; layers that agree in them share a layout.
    struct Cut {
        int n_head, n_kv_head, v_head_dim, window, chunk;
        bool both_ways;
        KvType k_type, v_type;
        int picked_tokens;
        bool operator==(const Cut &) const = default;
    };
    struct Tile {
        int first_row, n_rows; // indices into rows()
        int first_chunk, last_chunk; // chunks that any of the rows sees
        int first_item;
        bool is_split; // one item per chunk, otherwise one for all chunks
        int64_t partials;
        int counter;
    };
    struct Row {
        int32_t sequence, row; // indices into the batch
    };
    // The queries of a tile for one kv head, or for part of its query heads if there are many; or those of one row for
    // several kv heads.
    struct Item {
        const Tile *tile;
        int kv_head, n_kv_heads, first_head, n_heads;
        int first_chunk, last_chunk;
        float *partials; // states of all chunks of the tile; null if not split
        std::atomic<int> *counter; // number of finished chunks; null if not split
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
        int heads_of(const Tile &tile) const { return tile.n_rows > 1 ? 1 : together_; } // kv heads per item
        int parts_of(const Tile &tile) const; // items per chunk
        int count_items(bool by_chunks) const;
        void spread(int n_workers);
        void number_items();

        Cut cut_;
        int group_, tile_heads_, n_parts_;
        int most_together_, together_ = 1; // kv heads per item of one row
        bool is_split_ = false;
        std::vector<Tile> tiles_;
        std::vector<float> partials_;
        std::unique_ptr<std::atomic<int>[]> counters_;
        int n_counters_ = 0, n_items_ = 0;
    };

    // Register the shape of a layer.
    void add(const AttentionShape &shape);
    bool empty() const { return layouts_.empty(); }
    // Called before each step by one thread.  The batch's arrays must stay valid during the step.
    void begin(const KernelSet &kernels, const AttentionBatch &batch, int n_workers);
    const Layout *find(const AttentionShape &shape) const;
    const std::vector<Row> &rows() const { return rows_; }

  private:
    void order_sequences(const AttentionBatch &batch);

    std::vector<Layout> layouts_;
    std::vector<int32_t> order_;
    std::vector<Row> rows_;
    std::vector<bool> may_join_; // per row: it may share a tile with the previous row
};

} // namespace quire
