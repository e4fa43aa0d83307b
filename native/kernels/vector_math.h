// Elementary functions of vectors, as templates over an instruction set's vector type.
//
// Each instruction set's files include this after its Lanes; nothing here has external linkage.
#pragma once

namespace quire {
namespace {

constexpr float infinity = __builtin_huge_valf();

// x = n ln(2) + r with |r| <= ln(2) / 2, for |x| <= 88, and e^r = 1 + r * slope from its series.
template <class L> struct Reduced {
    typename L::Vec two_to_n, r, slope;

    Reduced(typename L::Vec x, typename L::Vec limited) {
        const auto n = L::round(L::mul(limited, L::set(1.44269504F)));
        two_to_n = L::power_of_two(n);
        r = L::fma(n, L::set(2.12194440e-4F), L::fma(n, L::set(-0.693359375F), x));
        const float factors[] = {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F};
        slope = L::set(1.0F / 5040);
        for (float factor : factors) slope = L::fma(slope, r, L::set(factor));
    }
};

// e^x for x <= 88; 0 if the result is subnormal.
template <class L> typename L::Vec exponential(typename L::Vec x) {
    constexpr float lowest = -87.3F;
    const Reduced<L> e(x, L::max(x, L::set(lowest)));
    return L::zero_where_below(x, lowest, L::mul(e.two_to_n, L::fma(e.slope, e.r, L::set(1.0F))));
}

// 2^x for x <= 0; 0 if the result is subnormal.  Relative error below 1.6e-7.
template <class L> typename L::Vec exponential2(typename L::Vec x) {
    constexpr float lowest = -126.0F;
    const auto n = L::round(L::max(x, L::set(lowest)));
    const auto r = L::sub(x, n); // |r| <= 1/2
    // 2^r = 1 + r p(r), minimax in relative error.
    const float factors[] = {0.00967151672F, 0.0555073358F, 0.240222424F, 0.693147004F};
    auto p = L::set(0.00132647366F);
    for (float factor : factors) p = L::fma(p, r, L::set(factor));
    return L::zero_where_below(x, lowest, L::times_power_of_two(L::fma(p, r, L::set(1.0F)), n));
}

// tanh(x) = (e^2x - 1) / (e^2x + 1), with the difference computed without cancellation.
template <class L> typename L::Vec hyperbolic_tangent(typename L::Vec x) {
    const auto limited = L::min(L::set(20.0F), L::max(L::set(-20.0F), L::add(x, x)));
    const Reduced<L> e(limited, L::max(limited, L::set(-20.0F))); // max() returns its second argument if x is NaN
    const auto difference = L::fma(e.two_to_n, L::mul(e.slope, e.r), L::sub(e.two_to_n, L::set(1.0F)));
    return L::div(difference, L::add(difference, L::set(2.0F)));
}

} // namespace
} // namespace quire
