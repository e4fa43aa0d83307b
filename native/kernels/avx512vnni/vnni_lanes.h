// Products of codes by VPDPBUSD.
//
// Each instruction set's files include this; nothing here has external linkage.
#pragma once

#include "kernels/avx512/code_lanes.h"

namespace quire {
namespace {

struct VnniLanes : CodeLanes {
    static constexpr bool signed_codes = false;
    static constexpr int code_class(int) { return 255; }
    static constexpr BlockShape few{8, 1}, more{6, 2};
    // Extracting codes overlaps with the products, but scales of two levels are computed again for each block of rows.
    // With a scale per 16 columns there are twice as many, and unpacking pays off after a few blocks.
    static constexpr int max_packed_rows(const ChunkLayout &layout) {
        return layout.scale_columns == 16 ? few_packed_rows : layout.has_two_levels() ? 48 : any_rows;
    }

    template <int> struct Products {
        Ints sum;
        void start(Ints begin) { sum = begin; }
        void add(Bytes codes, Bytes x, int) { sum = _mm512_dpbusd_epi32(sum, codes, x); }
        Ints total(int) const { return sum; }
    };
};

} // namespace
} // namespace quire
