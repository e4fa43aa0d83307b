// Products of codes without VNNI: VPMADDUBSW, which adds pairs of products in 16 bits.
#include "kernels/avx2/code_lanes.h"

#include "kernels/matmul_tile.h"

namespace quire {
namespace {

struct PairLanes : CodeLanes {
    static constexpr BlockShape unpacked{3, 1};
    static constexpr bool signed_codes = true;
    static constexpr int code_class(int max_code) { return max_code <= 15 ? 15 : max_code <= 31 ? 31 : max_code; }

    template <int max_code> struct Products {
        static constexpr bool is_signed = max_code == 255;
        // So many steps fit in 16 bits: of two products each, of a code (as a magnitude of up to 128) with up to 127.
        static constexpr int steps_that_fit = 32767 / ((is_signed ? 128 : max_code) * 2 * 127);
        Ints sum, pairs;
        void start(Ints begin) {
            sum = begin;
            pairs = _mm256_setzero_si256(); // not read
        }
        [[gnu::always_inline]] inline void add(Bytes codes, Bytes x, int step) {
            if constexpr (is_signed) {
                x = _mm256_sign_epi8(x, codes); // where a code is zero, so is the product
                codes = _mm256_abs_epi8(codes);
            }
            const Ints products = _mm256_maddubs_epi16(codes, x);
            pairs = step % steps_that_fit == 0 ? products : _mm256_add_epi16(pairs, products);
            if (step % steps_that_fit == steps_that_fit - 1) widen();
        }
        void widen() { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }
        Ints total(int n_steps) {
            if (n_steps % steps_that_fit != 0) widen();
            return sum;
        }
    };
};

} // namespace

const MatmulKernels avx2::matmul_kernels = {quantize<PairLanes>, multiply_any<PairLanes>};

} // namespace quire
