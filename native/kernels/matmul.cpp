#include "kernels/matmul.h"

#include <algorithm>
#include <memory>
#include <new>

#include "kernels/isa.h"
#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

// Rows of one part, so that they stay in the second-level cache beside a strip of weights.
constexpr int part_rows = 192;

struct FreeAligned {
    void operator()(uint8_t *memory) const { ::operator delete(memory, std::align_val_t{64}); }
};

// A thread's own scratch memory; grows to the largest size asked for.
struct Scratch {
    std::unique_ptr<uint8_t, FreeAligned> memory;
    size_t held = 0;
    uint8_t *get(size_t size_bytes) {
        if (size_bytes > held) {
            memory.reset(static_cast<uint8_t *>(::operator new(size_bytes, std::align_val_t{64})));
            held = size_bytes;
        }
        return memory.get();
    }
};

// Codes of a byte, and a scale and a minimum of 4 bytes for every 16 columns, of a strip of tiles.
size_t scratch_bytes(int64_t n_in) {
    const int64_t columns = (n_in + 255) / 256 * 256;
    return static_cast<size_t>(strip_tiles * tile_rows * (columns + columns / 16 * 8));
}

#if defined(__x86_64__)
const MatmulKernels &kernels() { return avx512vnni::matmul_kernels; }
#else
const MatmulKernels &kernels(); // never called: has_packed_matmul() is false
#endif

} // namespace

bool has_packed_matmul() {
#if defined(__x86_64__)
    return isa() == Isa::avx512 && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

void quantize_rows(const float *x, int n_rows, int worker, int n_workers, QuantizedRows &to) {
    const int64_t first = int64_t{n_rows} * worker / n_workers, last = int64_t{n_rows} * (worker + 1) / n_workers;
    kernels().quantize(x, first, last, to);
}

void packed_matmul(const Matmul &matmul, std::atomic<int> &next, int n_workers) {
    const int64_t n_tiles = matmul.weights.n_tiles();
    // Long runs of tiles read memory fastest; yet each worker should find several, so that a late one delays little.
    int64_t run = n_tiles / (int64_t{8} * n_workers) / strip_tiles * strip_tiles;
    if (matmul.n_rows > 8) run = strip_tiles;
    run = std::clamp<int64_t>(run, strip_tiles, 64);
    const int64_t n_runs = (n_tiles + run - 1) / run;
    const int n_row_parts = (matmul.n_rows + part_rows - 1) / part_rows;
    thread_local Scratch strips, rows;
    QuantizedRows x = matmul.x;
    if (matmul.raw != nullptr) {
        x = {matmul.weights.n_in,
             rows.get(static_cast<size_t>(QuantizedRows::size_bytes(matmul.n_rows, matmul.weights.n_in)))};
        kernels().quantize(matmul.raw, 0, matmul.n_rows, x);
    }
    MatmulPart part{};
    part.weights = &matmul.weights;
    part.x = &x;
    part.out = matmul.out;
    part.out_stride = matmul.weights.n_out;
    part.scratch = strips.get(scratch_bytes(matmul.weights.n_in));
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n_runs * n_row_parts;) {
        const int64_t begin = i / n_row_parts * run, end = std::min(begin + run, n_tiles);
        part.first_row = static_cast<int>(i % n_row_parts) * part_rows;
        part.n_rows = std::min(part_rows, matmul.n_rows - part.first_row);
        for (part.first_tile = begin; part.first_tile < end; part.first_tile += strip_tiles) {
            part.n_tiles = std::min<int64_t>(strip_tiles, end - part.first_tile);
            kernels().multiply(part);
        }
    }
}

} // namespace quire
