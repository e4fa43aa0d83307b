#include "kernels/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/isa.h"

namespace quire {
namespace {

const AttentionKernels &kernels() {
#if defined(__x86_64__)
    switch (isa()) {
    case Isa::avx512: return avx512_attention;
    case Isa::avx2: return avx2_attention;
    case Isa::portable: break;
    }
#endif
    return portable_attention;
}

int n_tiles(const AttentionBatch &batch, int sequence) {
    int rows = batch.row_begin[sequence + 1] - batch.row_begin[sequence];
    return (rows + attention_tile_rows - 1) / attention_tile_rows;
}

int n_pieces(const AttentionShape &shape, const AttentionBatch &batch) {
    int sum = 0;
    for (int s = 0; s < batch.n_sequences; ++s) sum += n_tiles(batch, s);
    return sum * shape.n_kv_head;
}

AttentionPiece piece(const AttentionShape &shape, const AttentionBatch &batch, int number) {
    int sequence = 0;
    for (int here; number >= (here = n_tiles(batch, sequence) * shape.n_kv_head); ++sequence) number -= here;
    int begin = batch.row_begin[sequence], end = batch.row_begin[sequence + 1];
    // The last tiles of a chunk have most to do, so they come first.
    int tile = n_tiles(batch, sequence) - 1 - number / shape.n_kv_head;
    int first = begin + tile * attention_tile_rows;
    AttentionPiece result{};
    result.table = batch.tables + batch.table_begin[sequence];
    result.kv_head = number % shape.n_kv_head;
    result.first_row = first;
    result.n_rows = std::min(attention_tile_rows, end - first);
    result.first_position = batch.n_kv[sequence] - (end - first);
    return result;
}

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

} // namespace

// For the rows and heads of a piece: queries, sums of values, maxima, sums, scores; and one block's K or V in f32.
int64_t attention_scratch_floats(const AttentionShape &shape) {
    int64_t queries = int64_t{attention_tile_rows} * (shape.n_head / shape.n_kv_head);
    int64_t per_query = padded(shape.head_dim) + padded(shape.v_head_dim) + 2 + attention_block_tokens;
    return padded(queries * per_query) + attention_block_tokens * std::max(padded(shape.head_dim), padded(shape.v_head_dim)) + 64;
}

void kv_write(const AttentionShape &shape, const AttentionBatch &batch, const float *k, const float *v, void *k_pool, void *v_pool,
              int worker, int n_workers) {
    const AttentionKernels &use = kernels();
    for (int64_t row = worker; row < batch.n_rows; row += n_workers) {
        int64_t block = batch.slots[row] / attention_block_tokens, offset = batch.slots[row] % attention_block_tokens;
        for (int64_t head = 0; head < shape.n_kv_head; ++head) {
            int64_t target = (block * shape.n_kv_head + head) * attention_block_tokens + offset, source = row * shape.n_kv_head + head;
            use.store_row(shape.type, k + source * shape.head_dim, k_pool, target * shape.head_dim, shape.head_dim);
            use.store_row(shape.type, v + source * shape.v_head_dim, v_pool, target * shape.v_head_dim, shape.v_head_dim);
        }
    }
}

void paged_attention(const AttentionShape &shape, const AttentionBatch &batch, const AttentionData &data, std::atomic<int> &next) {
    thread_local std::vector<float> scratch;
    const AttentionKernels &use = kernels();
    int n = n_pieces(shape, batch);
    for (int number; (number = next.fetch_add(1, std::memory_order_relaxed)) <= n;) {
        if (number == n) { // the last piece: rows that only pad the step
            int64_t row_floats = int64_t{shape.n_head} * shape.v_head_dim;
            std::memset(data.out + batch.n_rows * row_floats, 0, static_cast<size_t>((data.n_out_rows - batch.n_rows) * row_floats) * sizeof(float));
            continue;
        }
        auto floats = static_cast<size_t>(attention_scratch_floats(shape));
        if (scratch.size() < floats) scratch.resize(floats);
        AttentionPiece work = piece(shape, batch, number);
        work.scratch = scratch.data();
        use.attend(shape, data, work);
    }
}

} // namespace quire
