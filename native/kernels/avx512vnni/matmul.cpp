// Products of unsigned 8-bit codes of weights with signed ones of activations (VPDPBUSD), a register per step of 4
// columns and 16 output rows.  See packed_weights.h for the layout.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

constexpr int max_block_rows = 6;
// Up to so many rows read tiles as they lie in memory, one after the other; more are worth unpacking for.
constexpr int max_direct_rows = 4 * max_block_rows;
// How far ahead of its first use a tile is asked for.  Tiles follow each other in memory; with one stream of them and
// this distance every format reaches the memory's bandwidth, which the hardware's own prefetching does not.
constexpr int ahead_bytes = 4096;

void prefetch(const uint8_t *chunk, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += register_bytes)
        _mm_prefetch(reinterpret_cast<const char *>(chunk + ahead_bytes + i), _MM_HINT_T0);
}

__m512i load(const uint8_t *at) { return _mm512_loadu_si512(at); }
__m512 halves(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at))); }
__m128i bytes16(const uint8_t *at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }
__m512i broadcast(const int8_t *at) {
    int32_t four;
    std::memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

// The bits of `mask` in each byte, after moving them by `left`.
[[gnu::always_inline]] inline __m512i shifted(__m512i bits, int left, int mask) {
    const __m512i moved = left >= 0 ? _mm512_slli_epi16(bits, static_cast<unsigned>(left))
                                    : _mm512_srli_epi16(bits, static_cast<unsigned>(-left));
    return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask)));
}

// Weights of a tile as they lie in memory.
template <WeightFormat format> struct Packed {
    static constexpr ChunkLayout layout = chunk_layout(format);
    static constexpr bool in_memory = true;
    static constexpr bool has_minima = layout.has_minima;
    static constexpr int scale_columns = layout.scale_columns;
    static constexpr int zero_point = layout.zero_point;
    static constexpr int chunk_groups = layout.columns / group_columns;

    const uint8_t *chunk;

    static int64_t chunk_bytes() { return layout.bytes(); }
    // The codes of a step of the chunk's group g.
    __m512i codes(int g, int step) const {
        if constexpr (layout.code_bits == 8) return load(chunk + (g * group_steps + step) * register_bytes);
        if constexpr (layout.code_bits == 3) {
            const __m512i low = shifted(load(chunk + (g * 2 + step / 4) * register_bytes), -(step % 4) * 2, 3);
            return _mm512_or_si512(low, shifted(load(chunk + layout.low_bytes() + g * register_bytes), 2 - step, 4));
        }
        const __m512i fours = _mm512_set1_epi8(15);
        const __m512i pair = load(chunk + (g * 4 + step / 2) * register_bytes);
        const __m512i low = _mm512_and_si512(step % 2 == 0 ? pair : _mm512_srli_epi16(pair, 4), fours);
        if constexpr (layout.has_table) {
            const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i *>(four_bit_values));
            const __m512i table = _mm512_xor_si512(_mm512_broadcast_i32x4(values), _mm512_set1_epi8(-128));
            return _mm512_shuffle_epi8(table, low);
        }
        const uint8_t *high = chunk + layout.low_bytes();
        if constexpr (layout.code_bits == 5) {
            return _mm512_or_si512(low, shifted(load(high + g * register_bytes), 4 - step, 16));
        }
        if constexpr (layout.code_bits == 6) {
            return _mm512_or_si512(low,
                                   shifted(load(high + (g * 2 + step / 4) * register_bytes), 4 - step % 4 * 2, 48));
        }
        return low;
    }
    // i: which scale of the chunk.
    __m512 scale(int i) const {
        const uint8_t *at = chunk + layout.scales_at();
        if constexpr (!layout.has_two_levels) return halves(at + i * tile_rows * 2);
        const __m128i small = bytes16(at + i * tile_rows);
        const __m512i wide = layout.has_minima ? _mm512_cvtepu8_epi32(small) : _mm512_cvtepi8_epi32(small);
        return _mm512_mul_ps(halves(chunk + layout.factors_at()), _mm512_cvtepi32_ps(wide));
    }
    __m512 minimum(int i) const {
        const uint8_t *at = chunk + layout.minima_at();
        // One level adds its minimum, two levels subtract it.
        if constexpr (!layout.has_two_levels) return halves(at + i * tile_rows * 2);
        const __m512 small = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes16(at + i * tile_rows)));
        return _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), halves(chunk + layout.factors_at() + tile_rows * 2)),
                             small);
    }
    void advance() { chunk += chunk_bytes(); }
};

// Weights of a tile, unpacked once for many rows: codes of a byte, then scales, then minima, as floats.
template <WeightFormat format> struct Unpacked {
    using Source = Packed<format>;
    static constexpr bool in_memory = false;
    static constexpr bool has_minima = Source::has_minima;
    static constexpr int scale_columns = Source::scale_columns;
    static constexpr int zero_point = Source::zero_point;
    static constexpr int chunk_groups = Source::chunk_groups;
    static constexpr int n_scales = chunk_groups * group_columns / scale_columns;
    static constexpr int scales_at = chunk_groups * group_steps * register_bytes;
    static constexpr int minima_at = scales_at + n_scales * register_bytes;

    const uint8_t *chunk;

    static constexpr int64_t chunk_bytes() { return minima_at + (has_minima ? n_scales * register_bytes : 0); }
    __m512i codes(int g, int step) const { return load(chunk + (g * group_steps + step) * register_bytes); }
    __m512 scale(int i) const { return _mm512_loadu_ps(chunk + scales_at + i * register_bytes); }
    __m512 minimum(int i) const { return _mm512_loadu_ps(chunk + minima_at + i * register_bytes); }
    void advance() { chunk += chunk_bytes(); }

    static void unpack(Source from, int64_t n_chunks, uint8_t *to) {
        for (int64_t c = 0; c < n_chunks; ++c, from.advance(), to += chunk_bytes()) {
            prefetch(from.chunk, Source::chunk_bytes());
#pragma GCC unroll 8
            for (int g = 0; g < chunk_groups; ++g) {
#pragma GCC unroll 8
                for (int step = 0; step < group_steps; ++step) {
                    _mm512_storeu_si512(to + (g * group_steps + step) * register_bytes, from.codes(g, step));
                }
            }
            for (int i = 0; i < n_scales; ++i) {
                _mm512_storeu_ps(to + scales_at + i * register_bytes, from.scale(i));
                if constexpr (has_minima) _mm512_storeu_ps(to + minima_at + i * register_bytes, from.minimum(i));
            }
        }
    }
};

// What a block of rows reads of the activations.
template <int n_rows> struct RowBlock {
    const int8_t *codes[n_rows];
    const float *scales[n_rows];
    const float *scaled_sums[n_rows];
    const int32_t *negated_sums[n_rows]; // of 16 columns each where scales are, else of 32

    RowBlock(const QuantizedRows &x, int64_t first, bool halves) {
        for (int r = 0; r < n_rows; ++r) {
            codes[r] = x.codes(first + r);
            scales[r] = x.scales(first + r);
            scaled_sums[r] = x.scaled_sums(first + r);
            negated_sums[r] = halves ? x.negated_half_sums(first + r) : x.negated_sums(first + r);
        }
    }
};

// The columns of one scale: `sum` += scale * x scale * (codes . x codes).
template <class Weights, int n_rows, int n_tiles>
[[gnu::always_inline]] inline void add_part(const Weights (&weights)[n_tiles], const RowBlock<n_rows> &x, int64_t group,
                                            int g, int half, __m512 (&sums)[n_rows][n_tiles]) {
    constexpr int n_steps = Weights::scale_columns / step_columns;
    constexpr int parts = group_columns / Weights::scale_columns;
    const int i = g * parts + half;
    __m512i products[n_rows][n_tiles];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
        __m512i begin = _mm512_setzero_si512();
        if constexpr (Weights::zero_point != 0) {
            constexpr int shift = __builtin_ctz(Weights::zero_point);
            begin = _mm512_slli_epi32(_mm512_set1_epi32(x.negated_sums[r][group * parts + half]), shift);
        }
#pragma GCC unroll 8
        for (int t = 0; t < n_tiles; ++t) products[r][t] = begin;
    }
#pragma GCC unroll 8
    for (int s = 0; s < n_steps; ++s) {
        const int step = half * n_steps + s;
        __m512i codes[n_tiles];
#pragma GCC unroll 8
        for (int t = 0; t < n_tiles; ++t) codes[t] = weights[t].codes(g, step);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r) {
            const __m512i four = broadcast(x.codes[r] + group * group_columns + step * step_columns);
#pragma GCC unroll 8
            for (int t = 0; t < n_tiles; ++t) products[r][t] = _mm512_dpbusd_epi32(products[r][t], codes[t], four);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n_tiles; ++t) {
        const __m512 scale = weights[t].scale(i);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r) {
            const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[r][group]));
            sums[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r][t]), factor, sums[r][t]);
        }
        if constexpr (Weights::has_minima) {
            const __m512 minimum = weights[t].minimum(i);
#pragma GCC unroll 8
            for (int r = 0; r < n_rows; ++r) {
                sums[r][t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.scaled_sums[r][group]), sums[r][t]);
            }
        }
    }
}

template <class Weights, int n_rows, int n_tiles>
void multiply_block(const MatmulPart &part, const uint8_t *first, int64_t tile_bytes, int64_t tile, int64_t row) {
    Weights weights[n_tiles];
    for (int t = 0; t < n_tiles; ++t) weights[t].chunk = first + t * tile_bytes;
    const RowBlock<n_rows> x(*part.x, row, Weights::scale_columns == 16);
    __m512 sums[n_rows][n_tiles];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < n_tiles; ++t) sums[r][t] = _mm512_setzero_ps();
    }
    const int64_t n_chunks = part.weights->n_chunks();
    // Later blocks of rows find the tile in a cache.
    const bool from_memory = Weights::in_memory && row == part.first_row;
    for (int64_t c = 0; c < n_chunks; ++c) {
        if (from_memory) {
            for (int t = 0; t < n_tiles; ++t) prefetch(weights[t].chunk, Weights::chunk_bytes());
        }
#pragma GCC unroll 2
        for (int g = 0; g < Weights::chunk_groups; ++g) {
            const int64_t group = c * Weights::chunk_groups + g;
            add_part<Weights, n_rows, n_tiles>(weights, x, group, g, 0, sums);
            if constexpr (Weights::scale_columns == 16)
                add_part<Weights, n_rows, n_tiles>(weights, x, group, g, 1, sums);
        }
        for (int t = 0; t < n_tiles; ++t) weights[t].advance();
    }
    for (int t = 0; t < n_tiles; ++t) {
        const int64_t column = (tile + t) * tile_rows, left = part.weights->n_out - column;
        const __mmask16 lanes = left >= tile_rows ? 0xffff : static_cast<__mmask16>((1 << left) - 1);
        for (int r = 0; r < n_rows; ++r) {
            _mm512_mask_storeu_ps(part.out + (row + r) * part.out_stride + column, lanes, sums[r][t]);
        }
    }
}

// Rows [row, end) in blocks of up to max_rows.
template <class Weights, int n_tiles, int max_rows>
void multiply_rows(const MatmulPart &part, const uint8_t *first, int64_t tile_bytes, int64_t tile, int64_t row,
                   int64_t end) {
    for (; row + max_rows <= end; row += max_rows)
        multiply_block<Weights, max_rows, n_tiles>(part, first, tile_bytes, tile, row);
    if constexpr (max_rows > 1)
        if (row < end) multiply_rows<Weights, n_tiles, max_rows - 1>(part, first, tile_bytes, tile, row, end);
}

template <class Weights, int n_tiles>
void multiply_tiles(const MatmulPart &part, const uint8_t *first, int64_t tile_bytes) {
    const int64_t row = part.first_row, end = row + part.n_rows;
    int64_t t = 0;
    for (; t + n_tiles <= part.n_tiles; t += n_tiles)
        multiply_rows<Weights, n_tiles, max_block_rows>(part, first + t * tile_bytes, tile_bytes, part.first_tile + t,
                                                        row, end);
    for (; t < part.n_tiles; ++t)
        multiply_rows<Weights, 1, max_block_rows>(part, first + t * tile_bytes, tile_bytes, part.first_tile + t, row,
                                                  end);
}

template <WeightFormat format> void multiply(const MatmulPart &part) {
    const int64_t tile_bytes = part.weights->tile_bytes();
    const uint8_t *first = part.weights->data + part.first_tile * tile_bytes;
    if (part.n_rows <= max_direct_rows) return multiply_tiles<Packed<format>, 1>(part, first, tile_bytes);
    if (format == WeightFormat::q8_0) return multiply_tiles<Packed<format>, 2>(part, first, tile_bytes);
    const int64_t n_chunks = part.weights->n_chunks();
    const int64_t unpacked_bytes = n_chunks * Unpacked<format>::chunk_bytes();
    for (int64_t t = 0; t < part.n_tiles; ++t)
        Unpacked<format>::unpack(Packed<format>{first + t * tile_bytes}, n_chunks, part.scratch + t * unpacked_bytes);
    multiply_tiles<Unpacked<format>, 2>(part, part.scratch, unpacked_bytes);
}

void multiply_any(const MatmulPart &part) {
    switch (part.weights->format) {
    case WeightFormat::q4_0: return multiply<WeightFormat::q4_0>(part);
    case WeightFormat::q4_1: return multiply<WeightFormat::q4_1>(part);
    case WeightFormat::q5_0: return multiply<WeightFormat::q5_0>(part);
    case WeightFormat::q5_1: return multiply<WeightFormat::q5_1>(part);
    case WeightFormat::q8_0: return multiply<WeightFormat::q8_0>(part);
    case WeightFormat::q4_k: return multiply<WeightFormat::q4_k>(part);
    case WeightFormat::q5_k: return multiply<WeightFormat::q5_k>(part);
    case WeightFormat::q6_k: return multiply<WeightFormat::q6_k>(part);
    case WeightFormat::q3_k: return multiply<WeightFormat::q3_k>(part);
    case WeightFormat::iq4_nl: return multiply<WeightFormat::iq4_nl>(part);
    case WeightFormat::iq4_xs: return multiply<WeightFormat::iq4_xs>(part);
    default: return; // floats are float_matmul.cpp's
    }
}

// What is not finite gets some code: its scale is not finite either.
__m512i rounded(__m512 x) {
    const __m512i limit = _mm512_set1_epi32(127);
    const __m512i codes = _mm512_cvtps_epi32(x);
    return _mm512_max_epi32(_mm512_min_epi32(codes, limit), _mm512_sub_epi32(_mm512_setzero_si512(), limit));
}

struct Group {
    const QuantizedRows &to;
    int64_t row, group;
    void write(__m512 low, __m512 high) const {
        const __m512 magnitude = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
        float scale = _mm512_reduce_max_ps(magnitude) / 127.0F;
        // The maximum passes over what is not a number; a row that has such a column must not look sound.
        if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) != 0) scale = NAN;
        // Below the normal numbers the inverse overflows; such columns count as zero.
        const __m512 inverse = _mm512_set1_ps(scale > 1e-37F ? 1.0F / scale : 0.0F);
        const __m512i low_codes = rounded(_mm512_mul_ps(low, inverse));
        const __m512i high_codes = rounded(_mm512_mul_ps(high, inverse));
        auto *codes = reinterpret_cast<__m128i *>(to.codes(row) + group * group_columns);
        _mm_storeu_si128(codes, _mm512_cvtsepi32_epi8(low_codes));
        _mm_storeu_si128(codes + 1, _mm512_cvtsepi32_epi8(high_codes));
        const int low_sum = _mm512_reduce_add_epi32(low_codes), high_sum = _mm512_reduce_add_epi32(high_codes);
        to.scales(row)[group] = scale;
        to.scaled_sums(row)[group] = scale * static_cast<float>(low_sum + high_sum);
        to.negated_sums(row)[group] = -(low_sum + high_sum);
        to.negated_half_sums(row)[2 * group] = -low_sum;
        to.negated_half_sums(row)[2 * group + 1] = -high_sum;
    }
};

void quantize(const float *x, int64_t first, int64_t last, QuantizedRows &to) {
    const int64_t n_groups = QuantizedRows::n_groups(to.n_in);
    for (int64_t row = first; row < last; ++row) {
        const float *from = x + row * to.n_in;
        for (int64_t g = 0; g < n_groups; ++g) {
            // n_in is a multiple of 32; the last group may be padding.
            const bool real = (g + 1) * group_columns <= to.n_in;
            const __m512 zero = _mm512_setzero_ps();
            Group{to, row, g}.write(real ? _mm512_loadu_ps(from + g * group_columns) : zero,
                                    real ? _mm512_loadu_ps(from + g * group_columns + 16) : zero);
        }
    }
}

} // namespace

const MatmulKernels avx512vnni::matmul_kernels = {quantize, multiply_any};

} // namespace quire
