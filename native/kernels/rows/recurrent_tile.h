// The operations of recurrent_kernels.h as templates over the vector type of an instruction set.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/rows/recurrent_kernels.h"
#include "kernels/rows/row_kernels-inl.h"

namespace quire {
namespace {

template <class L> struct Recurrent {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

    static Vec load(const float *p, int n) { return n == width ? L::load(p) : L::load_part(p, n); }
    static void store(float *p, Vec x, int n) {
        if (n == width) return L::store(p, x);
        float last[width];
        L::store(last, x);
        __builtin_memcpy(p, last, static_cast<size_t>(n) * sizeof(float));
    }
    static int lanes(int64_t left) { return left < width ? static_cast<int>(left) : width; }

    static void conv(const ConvRows &rows) {
        const int past = rows.width - 1;
        for (int64_t row = 0; row < rows.n_rows; ++row) {
            const float *from[most_conv_width];
            for (int j = 0; j < rows.width; ++j) {
                const int64_t at = row + j - past;
                from[j] = at < 0 ? rows.past + (past + at) * rows.stride : rows.x + at * rows.stride;
            }
            float *out = rows.out + row * rows.stride;
            for (int64_t c = 0; c < rows.n; c += width) {
                const int n = lanes(rows.n - c);
                Vec sum = rows.bias == nullptr ? L::set(0.0F) : load(rows.bias + c, n);
                for (int j = 0; j < rows.width; ++j)
                    sum = L::fma(load(rows.taps + j * rows.stride + c, n), load(from[j] + c, n), sum);
                store(out + c, rows.is_silu ? Rows<L>::silu(sum) : sum, n);
            }
        }
    }

    // One row of a vector of channels; `stride` is the distance of their state numbers.
    static void scan_row(const ScanRows &rows, int64_t row, int64_t channel, int n, const float *a, float *state,
                         int64_t stride) {
        const float *b = rows.b + row * rows.n_state, *c = rows.c + row * rows.n_state;
        const Vec x = load(rows.x + row * rows.stride + channel, n),
                  dt = load(rows.dt + row * rows.stride + channel, n);
        const Vec input = L::mul(dt, x);
        Vec sums[2]{L::set(0.0F), L::set(0.0F)};
        for (int64_t s = 0; s < rows.n_state; ++s) {
            const Vec decay = exponential<L>(L::mul(dt, load(a + s * stride, n)));
            const Vec h = L::fma(decay, load(state + s * stride, n), L::mul(input, L::set(b[s])));
            store(state + s * stride, h, n);
            sums[s & 1] = L::fma(h, L::set(c[s]), sums[s & 1]);
        }
        Vec y = L::add(sums[0], sums[1]);
        if (rows.skip != nullptr) y = L::fma(x, load(rows.skip + channel, n), y);
        store(rows.out + row * rows.stride + channel, y, n);
    }

    static void scan(const ScanRows &rows) {
        for (int64_t row = 0; row < rows.n_rows; ++row) {
            for (int64_t first = 0; first < rows.n; first += scan_channels) {
                const int64_t m = rows.n - first < scan_channels ? rows.n - first : scan_channels;
                const float *a = rows.a + first * rows.n_state;
                float *state = rows.state + first * rows.n_state;
                for (int64_t c = 0; c < m; c += width)
                    scan_row(rows, row, first + c, lanes(m - c), a + c, state + c, m);
            }
        }
    }

    // Four partial sums, in flight together, each over every fourth row of the state.
    template <int V> struct Sums {
        static constexpr int ways = 4;
        Vec sum[ways][V];
        Sums() {
            for (auto &way : sum)
                for (Vec &each : way) each = L::set(0.0F);
        }
        Vec total(int v) const { return L::add(L::add(sum[0][v], sum[1][v]), L::add(sum[2][v], sum[3][v])); }
    };

    // sums[v] += factor[i] * S[i] over all rows i of the state.
    template <int V> static Sums<V> product(const float *factor, const float *state, int64_t stride, int64_t n_key) {
        Sums<V> sums;
        int64_t i = 0;
        for (; i + 4 <= n_key; i += 4)
            for (int way = 0; way < 4; ++way)
                for (int v = 0; v < V; ++v)
                    sums.sum[way][v] = L::fma(L::set(factor[i + way]), L::load(state + (i + way) * stride + v * width),
                                              sums.sum[way][v]);
        for (; i < n_key; ++i)
            for (int v = 0; v < V; ++v)
                sums.sum[0][v] = L::fma(L::set(factor[i]), L::load(state + i * stride + v * width), sums.sum[0][v]);
        return sums;
    }

    // The inputs of a row that are the same for all columns of the state.
    struct Row {
        const float *key, *query;
        const float *decay; // [n_key]
        float decay_number; // if there is one number per row
        const float *a, *b;
    };

    // S[i] = d[i] S[i] + k[i] u + b[i] w and sums[v] += q[i] S[i], with the old or the new S[i].
    template <int V, OuterRule rule, bool by_key>
    static Sums<V> update(const Row &row, const Vec (&u)[V], const Vec (&w)[V], float *state, int64_t stride,
                          int64_t n_key) {
        Sums<V> sums;
        const Vec decay_of_all = L::set(row.decay_number);
        auto step = [&](int64_t i, int way) {
            const Vec decay = by_key ? L::set(row.decay[i]) : decay_of_all;
            const Vec key = L::set(row.key[i]), query = L::set(row.query[i]);
            for (int v = 0; v < V; ++v) {
                float *at = state + i * stride + v * width;
                const Vec old = L::load(static_cast<const float *>(at));
                Vec now = L::fma(key, u[v], L::mul(decay, old));
                if constexpr (rule == OuterRule::general) now = L::fma(L::set(row.b[i]), w[v], now);
                L::store(at, now);
                sums.sum[way][v] = L::fma(query, rule == OuterRule::bonus ? old : now, sums.sum[way][v]);
            }
        };
        int64_t i = 0;
        for (; i + 4 <= n_key; i += 4)
            for (int way = 0; way < 4; ++way) step(i + way, way);
        for (; i < n_key; ++i) step(i, 0);
        return sums;
    }

    // All rows, for V vectors of columns.  The last vector has `n` lanes; only for V = 1 may that be fewer than all.
    template <int V, OuterRule rule, bool by_key>
    static void columns(const OuterRows &rows, int64_t column, int n, float *state, int64_t stride) {
        float decays[most_keys], decayed_key[most_keys];
        for (int64_t r = 0; r < rows.n_rows; ++r) {
            auto at = [r](const OuterRows::Rows &of) { return of.data + r * of.stride; };
            Row row{at(rows.key), at(rows.query), decays, 0.0F, nullptr, nullptr};
            if constexpr (by_key)
                Rows<L>::each(decays, rows.n_key, [](Vec x) { return exponential<L>(x); }, at(rows.decay));
            else
                row.decay_number = L::first(exponential<L>(L::set(*at(rows.decay) * rows.decay_factor)));
            Vec value[V], u[V], w[V];
            for (int v = 0; v < V; ++v) {
                value[v] = u[v] = load(at(rows.value) + column + v * width, V == 1 ? n : width);
                w[v] = L::set(0.0F);
            }
            float skip = rows.skip;
            if constexpr (rule == OuterRule::product) {
                for (Vec &each : u) each = L::mul(each, L::set(*at(rows.beta)));
            } else if constexpr (rule == OuterRule::delta) {
                const float *key = row.key;
                if constexpr (by_key) {
                    for (int64_t i = 0; i < rows.n_key; ++i) decayed_key[i] = row.key[i] * decays[i];
                    key = decayed_key;
                }
                const Sums<V> known = product<V>(key, state, stride, rows.n_key);
                const Vec beta = L::set(*at(rows.beta)), decay = L::set(by_key ? 1.0F : row.decay_number);
                for (int v = 0; v < V; ++v) u[v] = L::mul(beta, L::sub(value[v], L::mul(decay, known.total(v))));
            } else if constexpr (rule == OuterRule::bonus) {
                skip = 0;
                for (int64_t i = 0; i < rows.n_key; ++i) skip += row.query[i] * (rows.first[i] * row.key[i]);
            } else {
                row.b = at(rows.b);
                const Sums<V> known = product<V>(at(rows.a), state, stride, rows.n_key);
                for (int v = 0; v < V; ++v) w[v] = known.total(v);
            }
            const Sums<V> sums = update<V, rule, by_key>(row, u, w, state, stride, rows.n_key);
            float *out = rows.out + r * rows.out_stride + column;
            for (int v = 0; v < V; ++v)
                store(out + v * width, L::fma(L::set(skip), value[v], sums.total(v)), V == 1 ? n : width);
        }
    }

    // All rows, for a block of the state: `m` columns from `first` on.
    template <OuterRule rule, bool by_key>
    static void block(const OuterRows &rows, int64_t first, int64_t m, float *state) {
        constexpr int vectors = 2;
        int64_t c = 0;
        for (; c + vectors * width <= m; c += vectors * width)
            columns<vectors, rule, by_key>(rows, first + c, width, state + c, m);
        for (; c + width <= m; c += width) columns<1, rule, by_key>(rows, first + c, width, state + c, m);
        if (c == m) return;
        const int n = lanes(m - c);
        float padded[most_keys * width];
        for (int64_t i = 0; i < rows.n_key; ++i)
            L::store(padded + i * width, L::load_part(static_cast<const float *>(state) + i * m + c, n));
        columns<1, rule, by_key>(rows, first + c, n, padded, width);
        for (int64_t i = 0; i < rows.n_key; ++i)
            store(state + i * m + c, L::load(static_cast<const float *>(padded) + i * width), n);
    }

    template <OuterRule rule, bool by_key> static void all_columns(const OuterRows &rows) {
        for (int64_t first = 0; first < rows.n_value; first += outer_columns) {
            const int64_t left = rows.n_value - first, m = left < outer_columns ? left : outer_columns;
            block<rule, by_key>(rows, first, m, rows.state + first * rows.n_key);
        }
    }

    template <OuterRule rule> static void outer_by(const OuterRows &rows) {
        rows.is_decay_by_key ? all_columns<rule, true>(rows) : all_columns<rule, false>(rows);
    }

    static void outer(const OuterRows &rows) {
        switch (rows.rule) {
        case OuterRule::product: return all_columns<OuterRule::product, false>(rows);
        case OuterRule::delta: return outer_by<OuterRule::delta>(rows);
        case OuterRule::bonus: return all_columns<OuterRule::bonus, true>(rows);
        case OuterRule::general: return all_columns<OuterRule::general, true>(rows);
        }
    }

    static constexpr RecurrentKernels table{conv, scan, outer};
};

} // namespace
} // namespace quire
