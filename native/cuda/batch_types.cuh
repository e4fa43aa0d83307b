// How the lanes of a warp read an arranged matrix (cuda/arranged_matrix.h) as fragments of `mma`.  Numbers are made in
// pairs of f16: a code's bits below the exponent of 1024 are the number 1024 + code, and the difference is exact.
//
// `n` is how many groups of a unit a warp works on, from `first` on.  Fragments: [k of 16][register], with row r in
// registers 0 and 2, row r + 8 in 1 and 3.
#pragma once

namespace quire_cuda {

constexpr unsigned pair_1024 = 0x64006400U;

// Both halves of a pair equal to one of its halves.
__device__ inline unsigned low_twice(unsigned pair) { return byte_perm(pair, 0, 0x1010); }
__device__ inline unsigned high_twice(unsigned pair) { return byte_perm(pair, 0, 0x3232); }

// Words of scales for a lane's two rows: `n` groups of two bytes each.
template <int n>
__device__ inline void load_scales(const char *scales, int first, int row, unsigned (&words)[2][n / 2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < n / 2; ++i)
            words[h][i] = *reinterpret_cast<const unsigned *>(scales + (row + 8 * h) * 16 + first * 2 + 4 * i);
}

// The scales of q4_0, q5_0, q8_0 and mxfp4: an f16 per group.
template <int n> struct GroupScales {
    unsigned words[2][n / 2];
    __device__ static GroupScales load(const char *scales, int first, int lane) {
        GroupScales made;
        load_scales<n>(scales, first, lane / 4, made.words);
        return made;
    }
    __device__ unsigned scale(int h, int i) const {
        return i % 2 == 0 ? low_twice(words[h][i / 2]) : high_twice(words[h][i / 2]);
    }
};

// The scales of q4_1: an f16 per group, and one to add.
template <int n> struct ScalesAndAdded {
    GroupScales<n> scales, added;
};

// The scales of q4_k and q5_k: d * scale, and -d_min * minimum.
template <int n> struct LineScales {
    unsigned words[2][n / 2], both[2];
    __device__ static LineScales load(const char *scales, int first, int lane) {
        LineScales made;
        load_scales<n>(scales, first, lane / 4, made.words);
        for (int h = 0; h < 2; ++h)
            made.both[h] = *reinterpret_cast<const unsigned *>(scales + 256 + (lane / 4 + 8 * h) * 4);
        return made;
    }
    __device__ unsigned line(int h, int i) const {
        const unsigned made = byte_perm(words[h][i / 2], 0x64646464U, i % 2 == 0 ? 0x4140 : 0x4342);
        return pair_multiply(pair_subtract(made, pair_1024), both[h]);
    }
};

struct ArrangedQ4 {
    static constexpr int n_groups = 8, unit_bytes = 2304, together = 2;
    static constexpr bool is_bf16 = false;
    template <int n> using Scales = GroupScales<n>;
    using Codes = uint4;
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return Scales<n>::load(unit + 2048, first, lane);
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return *reinterpret_cast<const uint4 *>(unit + group / 2 * 512 + lane * 16);
    }
    __device__ static unsigned word(const uint4 &codes, int i, int h) {
        return i % 2 == 0 ? (h == 0 ? codes.x : codes.y) : (h == 0 ? codes.z : codes.w);
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
        constexpr unsigned zero = 0x64086408U; // 1032
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned scale = scales.scale(h, i), of_row = word(codes, i, h);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_multiply(pair_subtract(code, zero), scale);
            }
        }
    }
};

struct ArrangedQ41 : ArrangedQ4 {
    static constexpr int unit_bytes = 2560;
    template <int n> using Scales = ScalesAndAdded<n>;
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return {GroupScales<n>::load(unit + 2048, first, lane), GroupScales<n>::load(unit + 2304, first, lane)};
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned scale = scales.scales.scale(h, i), added = scales.added.scale(h, i);
            const unsigned of_row = word(codes, i, h);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_fma(pair_subtract(code, pair_1024), scale, added);
            }
        }
    }
};

// The bits of a code of e2m1, as those of an f16, are the number times 2 ^ -14; the scales make up for it.
__device__ inline unsigned e2m1_pair(unsigned codes) { return (codes & 0x00070007U) << 9 | (codes & 0x00080008U) << 12; }

struct ArrangedMxfp4 : ArrangedQ4 {
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned scale = scales.scale(h, i), of_row = word(codes, i, h);
#pragma unroll
            for (int p = 0; p < 4; ++p) a[p / 2][p % 2 * 2 + h] = pair_multiply(e2m1_pair(of_row >> (4 * p)), scale);
        }
    }
};

// A scale for each half of a group, and a lane's columns lie in one half.
struct ArrangedNvfp4 : ArrangedMxfp4 {
    static constexpr int unit_bytes = 2560;
    template <int n> __device__ static GroupScales<n> scales(const char *unit, int first, int lane) {
        GroupScales<n> made;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < n / 2; ++i) {
                const int row = lane / 4 + 8 * h, half = lane % 4 / 2;
                made.words[h][i] =
                    *reinterpret_cast<const unsigned *>(unit + 2048 + (row * 2 + half) * 16 + first * 2 + 4 * i);
            }
        return made;
    }
};

struct ArrangedQ8 {
    static constexpr int n_groups = 8, unit_bytes = 4352, together = 1;
    static constexpr bool is_bf16 = false;
    template <int n> using Scales = GroupScales<n>;
    using Codes = uint4;
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return Scales<n>::load(unit + 4096, first, lane);
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return *reinterpret_cast<const uint4 *>(unit + group * 512 + lane * 16);
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
        constexpr unsigned zero = 0x64806480U; // 1152
        const unsigned words[2][2] = {{codes.x, codes.y}, {codes.z, codes.w}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned scale = scales.scale(h, i);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned code = byte_perm(words[h][p / 2], 0x64646464U, p % 2 == 0 ? 0x4140 : 0x4342);
                a[p / 2][p % 2 * 2 + h] = pair_multiply(pair_subtract(code, zero), scale);
            }
        }
    }
};

struct ArrangedQ4K {
    static constexpr int n_groups = 8, unit_bytes = 2368, together = 2;
    static constexpr bool is_bf16 = false;
    template <int n> using Scales = LineScales<n>;
    using Codes = uint4;
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return Scales<n>::load(unit + 2048, first, lane);
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return ArrangedQ4::codes(unit, group, lane);
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned line = scales.line(h, i), of_row = ArrangedQ4::word(codes, i, h);
            const unsigned scale = low_twice(line), added = high_twice(line);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_fma(pair_subtract(code, pair_1024), scale, added);
            }
        }
    }
};

struct ArrangedQ5K {
    static constexpr int n_groups = 8, unit_bytes = 2880, together = 2;
    static constexpr bool is_bf16 = false;
    template <int n> using Scales = LineScales<n>;
    struct Codes {
        uint4 low;
        unsigned high;
    };
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return Scales<n>::load(unit + 2560, first, lane);
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return {ArrangedQ4::codes(unit, group, lane),
                *reinterpret_cast<const unsigned *>(unit + 2048 + group / 2 * 128 + lane * 4)};
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned line = scales.line(h, i), of_row = ArrangedQ4::word(codes.low, i, h);
            const unsigned scale = low_twice(line), added = high_twice(line);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned high = codes.high >> ((i % 2 * 2 + h) * 4 + p) & 0x00010001U;
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | high << 4 | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_fma(pair_subtract(code, pair_1024), scale, added);
            }
        }
    }
};

struct ArrangedQ50 {
    static constexpr int n_groups = 8, unit_bytes = 2816, together = 2;
    static constexpr bool is_bf16 = false;
    template <int n> using Scales = GroupScales<n>;
    using Codes = ArrangedQ5K::Codes;
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        return Scales<n>::load(unit + 2560, first, lane);
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return ArrangedQ5K::codes(unit, group, lane);
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
        constexpr unsigned zero = 0x64106410U; // 1040
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned scale = scales.scale(h, i), of_row = ArrangedQ4::word(codes.low, i, h);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned high = codes.high >> ((i % 2 * 2 + h) * 4 + p) & 0x00010001U;
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | high << 4 | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_multiply(pair_subtract(code, zero), scale);
            }
        }
    }
};

struct ArrangedQ6K {
    static constexpr int n_groups = 8, unit_bytes = 3360, together = 2;
    static constexpr bool is_bf16 = false;
    template <int n> struct Scales { // two bytes at a time: groups i and i + 1
        unsigned short shorts[2][n / 2];
        unsigned d[2];
    };
    struct Codes {
        uint4 low;
        uint2 high;
    };
    template <int n> __device__ static Scales<n> scales(const char *unit, int first, int lane) {
        Scales<n> made;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = lane / 4 + 8 * h;
            const char *from = unit + 3072 + (row * 2 + lane % 4 / 2) * 8 + first;
#pragma unroll
            for (int i = 0; i < n / 2; ++i) made.shorts[h][i] = *reinterpret_cast<const unsigned short *>(from + 2 * i);
            made.d[h] = low_twice(*reinterpret_cast<const unsigned short *>(unit + 3328 + row * 2));
        }
        return made;
    }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        return {ArrangedQ4::codes(unit, group, lane),
                *reinterpret_cast<const uint2 *>(unit + 2048 + group / 2 * 256 + lane * 8)};
    }
    template <int n>
    __device__ static void fragments(const Scales<n> &scales, const Codes &codes, int i, unsigned (&a)[2][4]) {
        constexpr unsigned zero = 0x64206420U, scale_zero = 0x64806480U; // 1056, 1152
        const unsigned of_group = i % 2 == 0 ? codes.high.x : codes.high.y;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned byte = byte_perm(scales.shorts[h][i / 2], 0x64646464U, i % 2 == 0 ? 0x4040 : 0x4141);
            const unsigned scale = pair_multiply(pair_subtract(byte, scale_zero), scales.d[h]);
            const unsigned of_row = ArrangedQ4::word(codes.low, i, h);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const unsigned high = of_group >> (h * 8 + p * 2) & 0x00030003U;
                const unsigned code = (of_row >> (4 * p) & 0x000F000FU) | high << 4 | pair_1024;
                a[p / 2][p % 2 * 2 + h] = pair_multiply(pair_subtract(code, zero), scale);
            }
        }
    }
};

struct ArrangedBf16 {
    static constexpr int n_groups = 4, unit_bytes = 4096, together = 1;
    static constexpr bool is_bf16 = true;
    template <int n> struct Scales {};
    struct Codes {
        uint4 of_row[2];
    };
    template <int n> __device__ static Scales<n> scales(const char *, int, int) { return {}; }
    __device__ static Codes codes(const char *unit, int group, int lane) {
        const char *from = unit + group * 1024 + lane * 16;
        return {{*reinterpret_cast<const uint4 *>(from), *reinterpret_cast<const uint4 *>(from + 512)}};
    }
    template <int n> __device__ static void fragments(const Scales<n> &, const Codes &codes, int, unsigned (&a)[2][4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            a[0][h] = codes.of_row[h].x;
            a[0][2 + h] = codes.of_row[h].y;
            a[1][h] = codes.of_row[h].z;
            a[1][2 + h] = codes.of_row[h].w;
        }
    }
};

} // namespace quire_cuda
