#include "kernels/matmul.h"

#include <algorithm>
#include <cstdlib>
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
const FloatMatmulKernels &float_kernels() { return avx512::float_matmul_kernels; }
#else
// Never called: has_packed_matmul() is false.
const MatmulKernels &kernels() { std::abort(); }
const FloatMatmulKernels &float_kernels() { std::abort(); }
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

namespace {

// How a product is cut into parts.
struct Parts {
    int64_t n_tiles, strip, run, n_runs; // a worker takes a run of tiles, and multiplies a strip of it at a time
    int rows, n_row_parts;

    Parts(const Matmul &matmul, int n_workers) : n_tiles(matmul.weights.n_tiles()) {
        const bool is_float = matmul.weights.is_float();
        strip = is_float ? 1 : strip_tiles;
        // Long runs of tiles read memory fastest; yet each worker should find several, so that a late one delays little.
        run = matmul.n_rows > 8 ? strip : n_tiles / (int64_t{8} * n_workers) / strip * strip;
        run = std::clamp<int64_t>(run, strip, 16 * strip);
        n_runs = (n_tiles + run - 1) / run;
        rows = is_float ? part_rows / 2 : part_rows;
        n_row_parts = (matmul.n_rows + rows - 1) / rows;
    }
};

void run_part(const Matmul &matmul, const Parts &parts, int64_t i, MatmulPart part) {
    const int64_t begin = i / parts.n_row_parts * parts.run, end = std::min(begin + parts.run, parts.n_tiles);
    part.first_row = static_cast<int>(i % parts.n_row_parts) * parts.rows;
    part.n_rows = std::min(parts.rows, matmul.n_rows - part.first_row);
    for (part.first_tile = begin; part.first_tile < end; part.first_tile += parts.strip) {
        part.n_tiles = std::min(parts.strip, end - part.first_tile);
        matmul.weights.is_float() ? float_kernels().multiply(part) : kernels().multiply(part);
    }
}

} // namespace

void packed_matmul(const Matmul &matmul, std::atomic<int> &next, int n_workers) {
    thread_local Scratch strips, rows;
    const PackedWeights &weights = matmul.weights;
    QuantizedRows x = matmul.x;
    MatmulPart part{};
    part.weights = &weights;
    part.raw = matmul.raw;
    part.x = &x;
    part.out = matmul.out;
    part.out_stride = weights.n_out;
    if (!weights.is_float()) {
        if (matmul.raw != nullptr) {
            x = {weights.n_in, rows.get(static_cast<size_t>(QuantizedRows::size_bytes(matmul.n_rows, weights.n_in)))};
            kernels().quantize(matmul.raw, 0, matmul.n_rows, x);
        }
        part.scratch = strips.get(scratch_bytes(weights.n_in));
    }
    const Parts parts(matmul, n_workers);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < parts.n_runs * parts.n_row_parts;)
        run_part(matmul, parts, i, part);
}

} // namespace quire
