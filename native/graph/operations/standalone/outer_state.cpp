// Operations whose state is a matrix for each head, to which outer products are added: Mamba 2, delta rules, RWKV.
#include <algorithm>

#include "core/error.h"
#include "graph/operations/stateful_operation.h"
#include "graph/stock/stream_operators.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

struct OuterSizes {
    int64_t n_head, n_key, n_value; // the state is [n_head][n_key * n_value]
    int64_t n_key_head;             // heads of keys and queries, which divide n_head
    bool is_tiled = false;          // head h has key h % n_key_head; otherwise n_head / n_key_head in turn share one
};

// Where an operation's inputs stand among the recorded ones.  Without a decay, that of a head is its weight alone.
struct OuterInputs {
    int value, key, query, decay = -1, beta = -1, a = -1, b = -1;
};

const float one = 1.0F;

struct OuterWeights {
    WeightRef decay_factor, skip; // [n_head]; may be null
    WeightRef first;              // [n_head, n_key]; may be null
};

class OuterKernel : public StateKernel {
  public:
    OuterKernel(OuterRule rule, bool is_decay_by_key, OuterSizes sizes, OuterInputs at, const OuterWeights &weights)
        : rule_(rule), is_decay_by_key_(is_decay_by_key), sizes_(sizes), at_(at),
          decay_factor_(weight_floats(weights.decay_factor)), skip_(weight_floats(weights.skip)),
          first_(weight_floats(weights.first)) {}
    int n_parts() const override { return static_cast<int>(sizes_.n_head); }
    int64_t part_cost() const override { return 4 * sizes_.n_key * sizes_.n_value; }

    void run(const RecurrentKernels &kernels, const StateValues &values, const StateRows &rows,
             int part) const override {
        const int64_t head = part;
        const int64_t key_head =
            sizes_.is_tiled ? head % sizes_.n_key_head : head / (sizes_.n_head / sizes_.n_key_head);
        auto rows_of = [&](int input, int64_t n_head, int64_t which, int64_t n) -> OuterRows::Rows {
            if (input < 0) return {nullptr, 0};
            return {values.inputs[static_cast<size_t>(input)] + rows.begin * n_head * n + which * n, n_head * n};
        };
        OuterRows of{};
        of.rule = rule_;
        of.n_rows = rows.n;
        of.n_key = sizes_.n_key;
        of.n_value = sizes_.n_value;
        of.key = rows_of(at_.key, sizes_.n_key_head, key_head, sizes_.n_key);
        of.query = rows_of(at_.query, sizes_.n_key_head, key_head, sizes_.n_key);
        of.value = rows_of(at_.value, sizes_.n_head, head, sizes_.n_value);
        of.decay = rows_of(at_.decay, sizes_.n_head, head, is_decay_by_key_ ? sizes_.n_key : 1);
        of.is_decay_by_key = is_decay_by_key_;
        of.decay_factor = decay_factor_ == nullptr ? 1.0F : decay_factor_[head];
        of.beta = rows_of(at_.beta, sizes_.n_head, head, 1);
        of.skip = skip_ == nullptr ? 0.0F : skip_[head];
        if (at_.decay < 0) of.decay = of.beta = {&one, 0};
        of.first = first_ == nullptr ? nullptr : first_ + head * sizes_.n_key;
        of.a = rows_of(at_.a, sizes_.n_head, head, sizes_.n_key);
        of.b = rows_of(at_.b, sizes_.n_head, head, sizes_.n_key);
        of.state = rows.state + head * sizes_.n_key * sizes_.n_value;
        of.out_stride = sizes_.n_head * sizes_.n_value;
        of.out = values.out + rows.begin * of.out_stride + head * sizes_.n_value;
        kernels.outer(of);
    }

  private:
    OuterRule rule_;
    bool is_decay_by_key_;
    OuterSizes sizes_;
    OuterInputs at_;
    const float *decay_factor_, *skip_, *first_;
};

class OuterState : public StreamedOperation {
  public:
    OuterState(const char *name, StatePlace place, OuterRule rule, bool is_decay_by_key, OuterSizes sizes,
               OuterInputs at, OuterWeights weights)
        : StreamedOperation(name, place, without_null({weights.decay_factor, weights.skip, weights.first})),
          rule_(rule), is_decay_by_key_(is_decay_by_key), sizes_(sizes), at_(at), own_(std::move(weights)) {}

  protected:
    std::unique_ptr<StateKernel> make_kernel() const override {
        return std::make_unique<OuterKernel>(rule_, is_decay_by_key_, sizes_, at_, own_);
    }
    bool has_operator() const override {
        switch (rule_) {
        case OuterRule::product: return !sizes_.is_tiled;
        case OuterRule::delta: return has_delta_operator(sizes_.n_key, sizes_.n_value);
        case OuterRule::bonus:
        case OuterRule::general: return has_wkv_operator(sizes_.n_key, sizes_.n_value);
        }
        return false;
    }
    std::vector<TraceShape> input_shapes() const override;
    int64_t n_state() const override { return sizes_.n_head * sizes_.n_key * sizes_.n_value; }
    std::vector<ggml_tensor *> stream_inputs(const StockParts &p) const override {
        std::vector<ggml_tensor *> inputs = p.inputs;
        if (rule_ == OuterRule::product && at_.decay >= 0) {
            ggml_tensor *&dt = inputs[static_cast<size_t>(at_.decay)];
            dt = stock_before_softplus(p.context, dt);
        }
        return inputs;
    }
    StreamsMade make_streams(const StateStreams &streams) const override;

  private:
    OuterRule rule_;
    bool is_decay_by_key_;
    OuterSizes sizes_;
    OuterInputs at_;
    OuterWeights own_;
};

using Rest = std::vector<int64_t>;

std::vector<TraceShape> OuterState::input_shapes() const {
    const int64_t n_head = sizes_.n_head, n_key = sizes_.n_key;
    const std::vector<std::pair<int, Rest>> known{
        {at_.value, {n_head, sizes_.n_value}},
        {at_.key, {sizes_.n_key_head, n_key}},
        {at_.query, {sizes_.n_key_head, n_key}},
        {at_.decay, is_decay_by_key_ ? Rest{n_head, n_key} : Rest{n_head}},
        {at_.beta, {n_head}},
        {at_.a, {n_head, n_key}},
        {at_.b, {n_head, n_key}},
    };
    std::vector<TraceShape> shapes;
    for (const auto &[at, rest] : known) {
        if (at < 0) continue;
        shapes.resize(std::max(shapes.size(), static_cast<size_t>(at) + 1));
        shapes[static_cast<size_t>(at)] = {Lead::tokens, rest};
    }
    return shapes;
}

StreamsMade OuterState::make_streams(const StateStreams &streams) const {
    auto input = [&](int at) { return streams.inputs[static_cast<size_t>(at)]; };
    ggml_tensor *value = input(at_.value), *key = input(at_.key), *query = input(at_.query);
    const StreamWkv wkv{sizes_.n_head, query, at_.decay < 0 ? nullptr : input(at_.decay), key, value};
    switch (rule_) {
    case OuterRule::product: {
        ggml_tensor *factor = streams.weight(own_.decay_factor);
        return stock_scan(streams, {sizes_.n_value, sizes_.n_head, sizes_.n_key_head, sizes_.n_key, value,
                                    at_.decay < 0 ? stock_before_ones(streams, factor) : input(at_.decay), key, query,
                                    factor, own_.skip ? streams.weight(own_.skip) : nullptr});
    }
    case OuterRule::delta:
        return stock_delta(streams, {sizes_.n_key, sizes_.n_head, sizes_.n_key_head, sizes_.is_tiled, is_decay_by_key_,
                                     query, key, value, input(at_.decay), input(at_.beta)});
    case OuterRule::bonus: return stock_wkv6(streams, wkv, streams.weight(own_.first));
    case OuterRule::general: return stock_wkv7(streams, wkv, input(at_.a), input(at_.b));
    }
    throw InternalError("lower", "unknown rule");
}

void expect_rows(const char *name, const char *what, const TraceTensor &x, const Rest &rest) {
    if (x.shape() == TraceShape{Lead::tokens, rest}) return;
    std::string wanted, found;
    for (int64_t dim : rest) wanted += cat(", ", dim);
    for (int64_t dim : x.shape().rest) found += cat(", ", dim);
    throw ShapeError(name, cat(what, " is [", x.shape().lead == Lead::tokens ? "tokens" : "rows", found,
                               "]: expected [tokens", wanted, "]"));
}

// A value with two dimensions behind the rows.
const Rest &heads_of(const char *name, const char *what, const TraceTensor &x) {
    if (x.shape().rest.size() != 2 || x.shape().lead != Lead::tokens)
        throw ShapeError(name, cat(what, " has the wrong shape: expected [tokens, heads, n]"));
    return x.shape().rest;
}

OuterSizes outer_sizes_of(const char *name, const TraceTensor &value, const TraceTensor &key, bool is_tiled) {
    const Rest &values = heads_of(name, "the values", value), &keys = heads_of(name, "the keys", key);
    if (values[0] % keys[0] != 0)
        throw ShapeError(name, cat(values[0], " heads of values are no multiple of ", keys[0], " heads of keys"));
    if (keys[1] > most_keys) throw ShapeError(name, cat("keys have ", keys[1], " numbers: expected up to ", most_keys));
    return {values[0], keys[1], values[1], keys[0], is_tiled};
}

void claim(const char *name, const TraceTensor &x, StatePlace place, const OuterSizes &sizes) {
    x.tracer->claim_state(name, place.layer, place.index, sizes.n_head * sizes.n_key * sizes.n_value);
}

} // namespace

TraceTensor state_space_dual(const ScanInputs &in, WeightRef a, WeightRef d, StatePlace place) {
    constexpr const char *name = "state_space_dual";
    const OuterSizes sizes = outer_sizes_of(name, in.x, in.b, false);
    expect_rows(name, "c", in.c, in.b.shape().rest);
    expect_rows(name, "dt", in.dt, {sizes.n_head});
    expect_f32(name, a, {sizes.n_head});
    expect_f32(name, d, {sizes.n_head});
    claim(name, in.x, place, sizes);
    OuterInputs at{.value = 0, .key = 2, .query = 3, .decay = 1};
    at.beta = 1;
    return record_standalone(std::make_shared<OuterState>(name, place, OuterRule::product, false, sizes, at,
                                                          OuterWeights{std::move(a), std::move(d), nullptr}),
                             {in.x, in.dt, in.b, in.c}, in.x.shape());
}

TraceTensor retention(const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, WeightRef decay,
                      StatePlace place) {
    constexpr const char *name = "retention";
    const OuterSizes sizes = outer_sizes_of(name, v, k, false);
    expect_rows(name, "q", q, k.shape().rest);
    expect_f32(name, decay, {sizes.n_head});
    claim(name, v, place, sizes);
    const OuterInputs at{.value = 2, .key = 1, .query = 0};
    return record_standalone(std::make_shared<OuterState>(name, place, OuterRule::product, false, sizes, at,
                                                          OuterWeights{std::move(decay), nullptr, nullptr}),
                             {q, k, v}, v.shape());
}

TraceTensor gated_delta(const DeltaInputs &in, StatePlace place, bool is_tiled) {
    constexpr const char *name = "gated_delta";
    const OuterSizes sizes = outer_sizes_of(name, in.v, in.k, is_tiled);
    expect_rows(name, "q", in.q, in.k.shape().rest);
    const bool by_key = in.g.shape().rest.size() == 2;
    expect_rows(name, "g", in.g, by_key ? Rest{sizes.n_head, sizes.n_key} : Rest{sizes.n_head});
    expect_rows(name, "beta", in.beta, {sizes.n_head});
    claim(name, in.v, place, sizes);
    OuterInputs at{.value = 2, .key = 1, .query = 0, .decay = 3};
    at.beta = 4;
    return record_standalone(
        std::make_shared<OuterState>(name, place, OuterRule::delta, by_key, sizes, at, OuterWeights{}),
        {in.q, in.k, in.v, in.g, in.beta}, in.v.shape());
}

TraceTensor wkv6(const WkvInputs &in, WeightRef u, StatePlace place) {
    constexpr const char *name = "wkv6";
    const OuterSizes sizes = outer_sizes_of(name, in.v, in.k, false);
    const Rest keys{sizes.n_head, sizes.n_key};
    expect_rows(name, "k", in.k, keys);
    expect_rows(name, "r", in.r, keys);
    expect_rows(name, "w", in.w, keys);
    expect_f32(name, u, {sizes.n_head, sizes.n_key});
    claim(name, in.v, place, sizes);
    const OuterInputs at{.value = 3, .key = 2, .query = 0, .decay = 1};
    return record_standalone(std::make_shared<OuterState>(name, place, OuterRule::bonus, true, sizes, at,
                                                          OuterWeights{nullptr, nullptr, std::move(u)}),
                             {in.r, in.w, in.k, in.v}, in.v.shape());
}

TraceTensor wkv7(const WkvInputs &in, const TraceTensor &a, const TraceTensor &b, StatePlace place) {
    constexpr const char *name = "wkv7";
    const OuterSizes sizes = outer_sizes_of(name, in.v, in.k, false);
    const Rest keys{sizes.n_head, sizes.n_key};
    expect_rows(name, "k", in.k, keys);
    expect_rows(name, "r", in.r, keys);
    expect_rows(name, "w", in.w, keys);
    expect_rows(name, "a", a, keys);
    expect_rows(name, "b", b, keys);
    claim(name, in.v, place, sizes);
    OuterInputs at{.value = 3, .key = 2, .query = 0, .decay = 1};
    at.a = 4;
    at.b = 5;
    return record_standalone(
        std::make_shared<OuterState>(name, place, OuterRule::general, true, sizes, at, OuterWeights{}),
        {in.r, in.w, in.k, in.v, a, b}, in.v.shape());
}

} // namespace quire
