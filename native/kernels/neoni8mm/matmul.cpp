// Products of codes, two rows at a time with SMMLA (2 x 8 times 8 x 2); a last odd row uses SDOT.
#include "kernels/neon/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"

namespace quire {
namespace {

struct MatrixLanes : CodeLanes {
    static Bytes two_rows(const int8_t *first, const int8_t *second) {
        return vreinterpretq_u8_s8(vcombine_s8(vld1_s8(first), vld1_s8(second)));
    }
    static Ints add_ints(Ints a, Ints b) { return vaddq_s32(a, b); }

    // Sums of four output rows, two per register: each with the first row of activations, then with the second.
    struct MatrixProducts {
        Ints low = set_ints(0), high = set_ints(0);
        void add(const Bytes (&steps)[2], Bytes two_rows) {
            const uint32x4_t first = vreinterpretq_u32_u8(steps[0]), second = vreinterpretq_u32_u8(steps[1]);
            const int8x16_t x = vreinterpretq_s8_u8(two_rows);
            low = vmmlaq_s32(low, vreinterpretq_s8_u32(vzip1q_u32(first, second)), x);
            high = vmmlaq_s32(high, vreinterpretq_s8_u32(vzip2q_u32(first, second)), x);
        }
        Ints total(int row) const { return row == 0 ? vuzp1q_s32(low, high) : vuzp2q_s32(low, high); }
    };
};

} // namespace

const MatmulKernels neoni8mm::matmul_kernels = {quantize<MatrixLanes>, multiply_any<MatrixLanes>};

} // namespace quire
