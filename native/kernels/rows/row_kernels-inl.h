// The operations of row_kernels.h as templates over the vector type of an instruction set.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/rows/row_kernels.h"
#include "kernels/vector_math.h"

namespace quire {
namespace {

// L is Lanes plus swap_pairs(x), which exchanges lanes 2i and 2i + 1.
template <class L> struct Rows {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

    // out[i] = function(inputs[i]...), a vector at a time; the last, partial vector goes through a buffer.
    template <class Function, class... Inputs>
    static void each(float *out, int64_t n, Function function, const Inputs *...inputs) {
        int64_t i = 0;
        for (; i + width <= n; i += width) L::store(out + i, function(L::load(inputs + i)...));
        if (i == n) return;
        const auto left = static_cast<int>(n - i);
        float last[width];
        L::store(last, function(L::load_part(inputs + i, left)...));
        __builtin_memcpy(out + i, last, static_cast<size_t>(left) * sizeof(float));
    }

    // Fold add(v, sum) over the vectors of x; the lanes after the last number are zero.
    template <class Add> static Vec sum_of(const float *x, int64_t n, Add add) {
        constexpr int ways = 4; // sums in flight
        Vec sums[ways];
        for (Vec &sum : sums) sum = L::set(0.0F);
        int64_t i = 0;
        for (; i + ways * width <= n; i += ways * width) {
            for (int j = 0; j < ways; ++j) sums[j] = add(L::load(x + i + j * width), sums[j]);
        }
        for (; i + width <= n; i += width) sums[0] = add(L::load(x + i), sums[0]);
        if (i < n) sums[1] = add(L::load_part(x + i, static_cast<int>(n - i)), sums[1]);
        return L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3]));
    }
    static Vec squares(const float *x, int64_t n) {
        return sum_of(x, n, [](Vec v, Vec sum) { return L::fma(v, v, sum); });
    }

    static void layer_norm(const float *x, const float *weight, const float *bias, float eps, float *out, int64_t n) {
        const float mean =
            L::total(sum_of(x, n, [](Vec v, Vec sum) { return L::add(v, sum); })) / static_cast<float>(n);
        const Vec middle = L::set(mean);
        const int64_t whole = n / width * width;
        float spread = L::total(sum_of(x, whole, [middle](Vec v, Vec sum) {
            const Vec d = L::sub(v, middle);
            return L::fma(d, d, sum);
        }));
        for (int64_t i = whole; i < n; ++i) spread += (x[i] - mean) * (x[i] - mean);
        const Vec factor = L::set(1.0F / __builtin_sqrtf(spread / static_cast<float>(n) + eps));
        auto normed = [middle, factor](Vec v) { return L::mul(L::sub(v, middle), factor); };
        if (weight != nullptr && bias != nullptr)
            each(out, n, [normed](Vec v, Vec w, Vec b) { return L::fma(normed(v), w, b); }, x, weight, bias);
        else if (weight != nullptr)
            each(out, n, [normed](Vec v, Vec w) { return L::mul(normed(v), w); }, x, weight);
        else if (bias != nullptr)
            each(out, n, [normed](Vec v, Vec b) { return L::add(normed(v), b); }, x, bias);
        else
            each(out, n, normed, x);
    }

    static void rms_norm(const float *x, const float *weight, float eps, float *out, int64_t n) {
        const float mean = L::total(squares(x, n)) / static_cast<float>(n);
        const Vec factor = L::set(1.0F / __builtin_sqrtf(mean + eps));
        if (weight == nullptr) {
            each(out, n, [factor](Vec v) { return L::mul(v, factor); }, x);
        } else {
            each(out, n, [factor](Vec v, Vec w) { return L::mul(L::mul(v, factor), w); }, x, weight);
        }
    }

    static void rotate_half(float *x, const float *cosines, const float *sines, int64_t n) {
        const int64_t half = n / 2;
        int64_t i = 0;
        for (; i + width <= half; i += width) {
            const Vec low = L::load(x + i), high = L::load(x + half + i);
            L::store(x + i, L::fma(high, L::load(sines + i), L::mul(low, L::load(cosines + i))));
            L::store(x + half + i, L::fma(low, L::load(sines + half + i), L::mul(high, L::load(cosines + half + i))));
        }
        for (; i < half; ++i) {
            const float low = x[i], high = x[half + i];
            x[i] = __builtin_fmaf(high, sines[i], low * cosines[i]);
            x[half + i] = __builtin_fmaf(low, sines[half + i], high * cosines[half + i]);
        }
    }

    static void rotate_interleaved(float *x, const float *cosines, const float *sines, int64_t n) {
        int64_t i = 0;
        for (; i + width <= n; i += width) {
            const Vec v = L::load(x + i);
            L::store(x + i, L::fma(L::swap_pairs(v), L::load(sines + i), L::mul(v, L::load(cosines + i))));
        }
        for (; i < n; i += 2) {
            const float even = x[i], odd = x[i + 1];
            x[i] = __builtin_fmaf(odd, sines[i], even * cosines[i]);
            x[i + 1] = __builtin_fmaf(even, sines[i + 1], odd * cosines[i + 1]);
        }
    }

    static Vec silu(Vec x) {
        // Below -88 the quotient is zero anyway; the order of operands passes NaN on.
        const Vec power = exponential<L>(L::min(L::set(88.0F), L::sub(L::set(0.0F), x)));
        return L::div(x, L::add(L::set(1.0F), power));
    }
    static Vec gelu_tanh(Vec x) { // Hendrycks and Gimpel 2016
        const Vec cube = L::mul(L::mul(x, x), x);
        const Vec inner = L::mul(L::set(0.797884560802865F), L::fma(L::set(0.044715F), cube, x));
        return L::mul(L::mul(L::set(0.5F), x), L::add(L::set(1.0F), hyperbolic_tangent<L>(inner)));
    }
    // x times the normal distribution's cumulative probability at x.  The complementary error function has a relative
    // error below 1.2e-7 (Press et al. 1992, Numerical Recipes, section 6.2).
    static Vec gelu(Vec x) {
        // Beyond 64 the complement is zero; the order of operands passes NaN on.
        const Vec size = L::min(L::set(64.0F), L::max(L::sub(L::set(0.0F), x), x));
        const Vec z = L::mul(size, L::set(0.707106781186547F));
        const Vec t = L::div(L::set(1.0F), L::fma(L::set(0.5F), z, L::set(1.0F)));
        const float factors[] = {-0.82215223F, 1.48851587F, -1.13520398F, 0.27886807F, -0.18628806F,
                                 0.09678418F,  0.37409196F, 1.00002368F,  -1.26551223F};
        Vec power = L::set(0.17087277F);
        for (float factor : factors) power = L::fma(power, t, L::set(factor));
        const Vec rest = L::mul(L::mul(L::set(0.5F), t), exponential<L>(L::sub(power, L::mul(z, z))));
        return L::sub(L::max(L::set(0.0F), x), L::mul(size, rest));
    }
    static Vec relu(Vec x) { return L::max(L::set(0.0F), x); }

    static void activate(Activation activation, const float *x, float *out, int64_t n) {
        switch (activation) {
        case Activation::silu: return each(out, n, [](Vec v) { return silu(v); }, x);
        case Activation::gelu: return each(out, n, [](Vec v) { return gelu(v); }, x);
        case Activation::gelu_tanh: return each(out, n, [](Vec v) { return gelu_tanh(v); }, x);
        case Activation::relu: return each(out, n, [](Vec v) { return relu(v); }, x);
        }
    }
    static void gate(Activation activation, const float *gate, const float *up, float *out, int64_t n) {
        switch (activation) {
        case Activation::silu: return each(out, n, [](Vec g, Vec u) { return L::mul(silu(g), u); }, gate, up);
        case Activation::gelu: return each(out, n, [](Vec g, Vec u) { return L::mul(gelu(g), u); }, gate, up);
        case Activation::gelu_tanh: return each(out, n, [](Vec g, Vec u) { return L::mul(gelu_tanh(g), u); }, gate, up);
        case Activation::relu: return each(out, n, [](Vec g, Vec u) { return L::mul(relu(g), u); }, gate, up);
        }
    }

    static void add(const float *a, const float *b, float *out, int64_t n) {
        each(out, n, [](Vec x, Vec y) { return L::add(x, y); }, a, b);
    }
    static void multiply(const float *a, const float *b, float *out, int64_t n) {
        each(out, n, [](Vec x, Vec y) { return L::mul(x, y); }, a, b);
    }
    static void scale(const float *x, float factor, float *out, int64_t n) {
        const Vec f = L::set(factor);
        each(out, n, [f](Vec v) { return L::mul(v, f); }, x);
    }
    static void soft_cap(const float *x, float cap, float *out, int64_t n) {
        const Vec c = L::set(cap), inverse = L::set(1.0F / cap);
        each(out, n, [c, inverse](Vec v) { return L::mul(c, hyperbolic_tangent<L>(L::mul(v, inverse))); }, x);
    }
    static void add_scaled(const float *x, float factor, float *sum, int64_t n) {
        const Vec f = L::set(factor);
        const float *before = sum;
        each(sum, n, [f](Vec v, Vec s) { return L::fma(f, v, s); }, x, before);
    }

    static float largest(const float *x, int64_t n) {
        Vec top = L::set(-__builtin_inff()), strange = L::set(0.0F);
        int64_t i = 0;
        for (; i + width <= n; i += width) {
            const Vec v = L::load(x + i);
            top = L::max(top, v);
            strange = L::fma(v, L::set(0.0F), strange);
        }
        float found = L::largest(top), rest = L::total(strange);
        for (; i < n; ++i) {
            found = x[i] > found ? x[i] : found;
            rest += x[i] * 0.0F;
        }
        return rest == 0.0F ? found : rest;
    }

    static constexpr RowKernels table{rms_norm, layer_norm, rotate_half, rotate_interleaved, activate,   gate,
                                      add,      multiply,   scale,       soft_cap,           add_scaled, largest};
};

} // namespace
} // namespace quire
