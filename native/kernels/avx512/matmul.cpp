// Products of codes without VNNI: VPMADDUBSW, which adds pairs of products in 16 bits.
#include "kernels/avx512/code_lanes.h"

#include "kernels/matmul_tile.h"

namespace quire {
namespace {

struct PairLanes : CodeLanes {
    static constexpr bool signed_codes = true;
    static constexpr int code_class(int max_code) { return max_code <= 15 ? 15 : max_code <= 31 ? 31 : max_code; }
    static constexpr BlockShape few{3, 1}, more{3, 1}, unpacked{4, 2};
    static constexpr int max_packed_rows(const ChunkLayout &) { return few_packed_rows; }

    template <int max_code> struct Products {
        static constexpr bool is_signed = max_code == 255;
        // So many steps fit in 16 bits: of two products each, of a code (as a magnitude of up to 128) with up to 127.
        static constexpr int steps_that_fit = 32767 / ((is_signed ? 128 : max_code) * 2 * 127);
        Ints sum, pairs;
        void start(Ints begin) {
            sum = begin;
            pairs = _mm512_setzero_si512(); // not read
        }
        [[gnu::always_inline]] inline void add(Bytes codes, Bytes x, int step) {
            if constexpr (is_signed) {
                x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
                codes = _mm512_abs_epi8(codes);
            }
            const Ints products = _mm512_maddubs_epi16(codes, x);
            pairs = step % steps_that_fit == 0 ? products : _mm512_add_epi16(pairs, products);
            if (step % steps_that_fit == steps_that_fit - 1) widen();
        }
        void widen() { sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))); }
        Ints total(int n_steps) {
            if (n_steps % steps_that_fit != 0) widen();
            return sum;
        }
    };
};

} // namespace

const MatmulKernels avx512::matmul_kernels = {quantize<PairLanes>, multiply_any<PairLanes>};

} // namespace quire
