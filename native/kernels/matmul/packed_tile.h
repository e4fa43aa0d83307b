// Packed and unpacked tiles of quantized weights, as templates over the vector type of an instruction set; see
// packed_weights.h for the layout.  The 16 output rows of a tile take `parts` registers.
//
// L is an instruction set's CodeLanes.  In addition to its Lanes it has Bytes and Ints, registers of these, and the
// operations below.  If L::signed_codes, codes of 8 bits are multiplied as signed numbers, minus 128; all others are
// unsigned.
//
// Each instruction set's file includes this after its CodeLanes; nothing here has external linkage.
#pragma once

#include "kernels/prefetch.h"

namespace quire {
namespace {

// True if the instruction set looks up bytes in a table of 16.  Others look up many codes at a time, when unpacking.
template <class L>
concept looks_up_bytes = requires(typename L::Bytes codes) { L::looked_up(nullptr, 0, codes); };

constexpr bool is_signed_code(bool signed_codes, int max_code) { return signed_codes && max_code == 255; }

// The packed weights of a tile; `p` is the part of the 16 rows.
template <class L, WeightFormat format> struct Packed {
    using Bytes = typename L::Bytes;
    using Vec = typename L::Vec;
    static constexpr ChunkLayout layout = chunk_layout(format);
    static constexpr bool in_memory = true;
    static constexpr bool has_minima = layout.has_minima;
    static constexpr int scale_columns = layout.scale_columns;
    static constexpr int max_code = layout.max_code();
    static constexpr int chunk_groups = layout.columns / group_columns;
    static constexpr int64_t chunk_bytes = layout.bytes();
    static constexpr bool is_signed = is_signed_code(L::signed_codes, max_code);
    static constexpr int zero_point = is_signed ? 0 : layout.zero_point;

    const uint8_t *chunk;

    [[gnu::always_inline]] Bytes bytes(int at, int p) const {
        return L::load_bytes(chunk + at + p * L::width * step_columns);
    }
    static constexpr bool looks_up_later = layout.has_table() && !looks_up_bytes<L>;
    // The codes of a step in group g of the chunk; if looks_up_later, they are still indices into the table.
    [[gnu::always_inline]] Bytes codes(int g, int step, int p) const {
        const Bytes all = bytes(layout.low_at(g, step), p);
        if constexpr (layout.code_bits == 8) {
            return is_signed ? L::flip_sign(all) : all;
        } else {
            Bytes code = L::shifted(all, -layout.low_shift(step), (1 << layout.low_bits()) - 1);
            if constexpr (layout.high_bits() > 0) {
                constexpr int mask = (1 << layout.code_bits) - (1 << layout.low_bits());
                const int left = layout.low_bits() - layout.high_shift(step);
                code = L::either(code, L::shifted(bytes(layout.high_at(g, step), p), left, mask));
            }
            if constexpr (layout.has_table() && looks_up_bytes<L>)
                return L::looked_up(layout.table(chunk), zero_point, code);
            return code;
        }
    }
    [[gnu::always_inline]] static Vec halves(const uint8_t *at) {
        return L::load(reinterpret_cast<const typename L::F16 *>(at));
    }
    [[gnu::always_inline]] Vec factors(int which, int p) const {
        const Vec all = halves(chunk + layout.factors_at() + (which * tile_rows + p * L::width) * 2);
        return layout.unit == 1.0F ? all : L::mul(all, L::set(layout.unit));
    }
    // `i` is the index of the scale in the chunk.
    [[gnu::always_inline]] Vec scale(int i, int p) const {
        const uint8_t *at = chunk + layout.scale_at(i) + p * L::width * (layout.scale_bytes() / tile_rows);
        if constexpr (layout.scales == ScaleForm::halves) return halves(at);
        if constexpr (layout.scales == ScaleForm::powers) return L::power(L::widen_bytes(at));
        if constexpr (layout.scales == ScaleForm::minifloats)
            return L::mul(L::from_bits(L::shifted_left(L::widen_bytes(at), 20)), L::set(0x1p119F));
        if constexpr (layout.scales == ScaleForm::signed_bytes)
            return L::mul(factors(0, p), L::to_floats(L::widen_signed_bytes(at)));
        if constexpr (layout.scales == ScaleForm::nibbles)
            return L::mul(factors(0, p), L::to_floats(L::low_nibbles(L::widen_bytes(at))));
        return L::mul(factors(0, p), L::to_floats(L::widen_bytes(at)));
    }
    // The number to add; scales of two levels subtract their minima.
    [[gnu::always_inline]] Vec minimum(int i, int p) const {
        const uint8_t *at = chunk + layout.minimum_at(i) + p * L::width * (layout.scale_bytes() / tile_rows);
        if constexpr (layout.scales == ScaleForm::halves) return halves(at);
        const Vec factor = L::sub(L::set(0.0F), factors(1, p));
        if constexpr (layout.scales == ScaleForm::nibbles)
            return L::mul(factor, L::to_floats(L::high_nibbles(L::widen_bytes(at))));
        return L::mul(factor, L::to_floats(L::widen_bytes(at)));
    }
};

// The weights of a tile, unpacked once for many rows: codes of one byte, then scales, then minima, both as floats.
// Without minima, the zero point is in the middle of the range of codes up to largest_code, so a few types serve all
// formats.
template <class L, int columns_of_scale, bool minima, int largest_code> struct Unpacked {
    using Bytes = typename L::Bytes;
    using Vec = typename L::Vec;
    static constexpr bool in_memory = false;
    static constexpr bool has_minima = minima;
    static constexpr int scale_columns = columns_of_scale;
    static constexpr int max_code = largest_code;
    static constexpr int zero_point = minima || is_signed_code(L::signed_codes, max_code) ? 0 : (max_code + 1) / 2;
    static constexpr int chunk_groups = 2;
    static constexpr int n_scales = chunk_groups * group_columns / scale_columns;
    static constexpr int scales_at = chunk_groups * group_steps * register_bytes;
    static constexpr int minima_at = scales_at + n_scales * register_bytes;
    static constexpr int64_t chunk_bytes = minima_at + (minima ? n_scales * register_bytes : 0);

    const uint8_t *chunk;

    [[gnu::always_inline]] Bytes codes(int g, int step, int p) const {
        return L::load_bytes(chunk + (g * group_steps + step) * register_bytes + p * L::width * step_columns);
    }
    [[gnu::always_inline]] Vec floats(int at, int i, int p) const {
        return L::load(reinterpret_cast<const float *>(chunk + at + i * register_bytes) + p * L::width);
    }
    [[gnu::always_inline]] Vec scale(int i, int p) const { return floats(scales_at, i, p); }
    [[gnu::always_inline]] Vec minimum(int i, int p) const { return floats(minima_at, i, p); }
};

template <class L, WeightFormat format>
using UnpackedOf = Unpacked<L, chunk_layout(format).scale_columns, chunk_layout(format).has_minima,
                            L::code_class(chunk_layout(format).max_code())>;

// Unpack a packed chunk to chunks of `Unpacked`.
template <class L, WeightFormat format> void unpack_chunk(const Packed<L, format> &from, uint8_t *to) {
    using To = UnpackedOf<L, format>;
    constexpr int parts = tile_rows / L::width;
    using From = Packed<L, format>;
    constexpr int offset = From::looks_up_later ? 0 : To::zero_point - From::zero_point;
    prefetch(from.chunk + ahead_bytes, from.chunk_bytes);
    for (int g = 0; g < from.chunk_groups; ++g) {
        uint8_t *chunk = to + g / To::chunk_groups * To::chunk_bytes;
        uint8_t *codes = chunk + g % To::chunk_groups * group_steps * register_bytes;
#pragma GCC unroll 8
        for (int step = 0; step < group_steps; ++step) {
#pragma GCC unroll 4
            for (int p = 0; p < parts; ++p) {
                const auto bytes = from.codes(g, step, p);
                uint8_t *at = codes + step * register_bytes + p * L::width * step_columns;
                L::store_bytes(at, offset == 0 ? bytes : L::add_to_bytes(bytes, offset));
            }
        }
        if constexpr (From::looks_up_later) {
            const int8_t *table = From::layout.table(from.chunk);
            L::template look_up<From::layout.code_bits>(table, To::zero_point, codes, group_steps * register_bytes);
        }
    }
    for (int i = 0; i < from.layout.n_scales(); ++i) {
        uint8_t *chunk = to + i / To::n_scales * To::chunk_bytes;
        auto *scales = reinterpret_cast<float *>(chunk + To::scales_at + i % To::n_scales * register_bytes);
        auto *minima = reinterpret_cast<float *>(chunk + To::minima_at + i % To::n_scales * register_bytes);
        for (int p = 0; p < parts; ++p) {
            L::store(scales + p * L::width, from.scale(i, p));
            if constexpr (To::has_minima) L::store(minima + p * L::width, from.minimum(i, p));
        }
    }
}

} // namespace
} // namespace quire
