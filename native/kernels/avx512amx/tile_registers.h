// Products of byte tiles, C [16 rows][16] = A [16][k] x B [k / 4][16][4]: AMX's TDPBSSD, or a software model of it, so
// that the code around it can be tested on machines without AMX.
//
// Source: Intel's Software Developer's Manual, volume 2 (LDTILECFG, TILELOADD, TDPBSSD, TILESTORED).
#pragma once

#include <cstdint>
#include <cstring>

namespace quire {
namespace {

constexpr int block_rows = 16; // rows of A and C

// The operand of LDTILECFG: the number of rows and the bytes per row of each of 8 registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Registers 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights.
constexpr TileShapes tile_shapes(int k) {
    TileShapes shapes;
    for (int i = 0; i < 8; ++i) {
        shapes.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? k : 64);
        shapes.rows[i] = static_cast<uint8_t>(i < 6 ? block_rows : k / 4);
    }
    return shapes;
}

// Configures this thread's tile registers during the object's life.  The destructor resets them, which keeps context
// switches cheap and leaves clean registers to other users.  Compiler intrinsics are not used, because they do not
// declare the memory that they read.
template <int k> class TileRegisters {
  public:
    TileRegisters() {
        static constexpr TileShapes shapes = tile_shapes(k);
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }
    TileRegisters(const TileRegisters &) = delete;
    TileRegisters &operator=(const TileRegisters &) = delete;

    // `slot` is 0 or 1; products of both may be in flight at the same time.
    template <int slot>
    [[gnu::always_inline]] void multiply(const int8_t *a, int64_t stride, const uint8_t *b, int32_t *c) {
        const int64_t line = 64;
        if constexpr (slot == 0) {
            asm volatile("tilezero %%tmm0\n\t"
                         "tileloadd (%0,%1,1), %%tmm4\n\t"
                         "tileloadd (%2,%3,1), %%tmm6\n\t"
                         "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\t"
                         "tilestored %%tmm0, (%4,%3,1)" ::"r"(a),
                         "r"(stride), "r"(b), "r"(line), "r"(c)
                         : "memory");
        } else {
            asm volatile("tilezero %%tmm1\n\t"
                         "tileloadd (%0,%1,1), %%tmm5\n\t"
                         "tileloadd (%2,%3,1), %%tmm7\n\t"
                         "tdpbssd %%tmm7, %%tmm5, %%tmm1\n\t"
                         "tilestored %%tmm1, (%4,%3,1)" ::"r"(a),
                         "r"(stride), "r"(b), "r"(line), "r"(c)
                         : "memory");
        }
    }
};

template <int k> class TilesInSoftware {
  public:
    template <int slot> void multiply(const int8_t *a, int64_t stride, const uint8_t *b, int32_t *c) {
        for (int row = 0; row < block_rows; ++row) {
            for (int column = 0; column < 16; ++column) {
                int32_t sum = 0;
                for (int i = 0; i < k; ++i) {
                    const auto code = static_cast<int8_t>(b[i / 4 * 64 + column * 4 + i % 4]);
                    sum += int32_t{a[row * stride + i]} * code;
                }
                c[row * 16 + column] = sum;
            }
        }
    }
};

} // namespace
} // namespace quire
