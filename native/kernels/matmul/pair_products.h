// Products of codes without VNNI: pairs of products are added in 16 bits.  It works for registers of 32 and 64 bytes;
// C, an instruction set's CodeLanes, has the operations.
#pragma once

#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

template <class C> struct PairLanes : C {
    using Bytes = typename C::Bytes;
    using Ints = typename C::Ints;
    static constexpr bool signed_codes = true;
    static constexpr int code_class(int max_code) { return max_code <= 15 ? 15 : max_code <= 31 ? 31 : max_code; }

    template <int max_code> struct Products {
        static constexpr bool is_signed = max_code == 255;
        // The number of steps whose sum fits in 16 bits: two products per step, of a code (a magnitude up to 128) and a
        // number up to 127.
        static constexpr int steps_that_fit = 32767 / ((is_signed ? 128 : max_code) * 2 * 127);
        Ints sum, pairs;
        void start(Ints begin) {
            sum = begin;
            pairs = C::set_ints(0); // never read
        }
        [[gnu::always_inline]] inline void add(Bytes codes, Bytes x, int step) {
            if constexpr (is_signed) {
                x = C::with_signs_of(x, codes);
                codes = C::magnitudes(codes);
            }
            const Ints products = C::pairs_of_products(codes, x);
            pairs = step % steps_that_fit == 0 ? products : C::add_pairs(pairs, products);
            // Keep GCC from postponing the additions to a tree at the end, which needs more registers than there are.
            // The other asm, for `sum`, does the same.
            asm("" : "+v"(pairs));
            if (step % steps_that_fit == steps_that_fit - 1) widen();
        }
        void widen() {
            sum = C::add_widened(sum, pairs);
            if constexpr (steps_that_fit == 1) asm("" : "+v"(sum));
        }
        Ints total(int n_steps) {
            if (n_steps % steps_that_fit != 0) widen();
            return sum;
        }
    };
};

} // namespace
} // namespace quire
