// Compressed attention (DeepSeek-AI 2026): rows that stand for several tokens, and attention to them.
#include <algorithm>

#include "core/error.h"
#include "graph/operations/fused/paged_rows.h"
#include "graph/stock/lower_stock.h"
#include "graph/trace/shape_checks.h"
#include "kernels/attention/compressed_attention.h"
#include "kernels/attention/index_scores.h"

namespace quire {
namespace {

void expect_cpu(const char *place, const KvStore &store, int layer) {
    if (store.rows(layer).k.device().kind() != DeviceKind::cpu)
        throw UnsupportedError(place, "compressed attention runs on the CPU only");
}

class PagedKind : public OperationKind {
  public:
    PagedKind(const char *name, std::vector<int> layers) : name_(name), layers_(std::move(layers)) {}
    std::string describe() const override { return cat(name_, " layer ", layers_.front()); }
    size_t n_tensors() const override { return 16; }
    std::vector<int> cached_layers() const override { return layers_; }
    bool runs_on(Device device) const override { return device.kind() == DeviceKind::cpu; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override {
        add_paged_nodes(lowering, i, operation(lowering.store()));
    }

  protected:
    virtual PagedOperation operation(const KvStore &store) const = 0;
    PagedLayer layer(const KvStore &store, int which) const {
        expect_cpu(name_, store, which);
        return PagedLayer::of(name_, store, which);
    }

  private:
    const char *name_;
    std::vector<int> layers_;
};

class CompressKernel : public PagedKernel {
  public:
    CompressKernel(int group, const CompressedWindow &window) : group_(group), window_(window) {}
    void run(const PagedStep &step, int row, int) const override {
        const PagedStep::Place place = step.place(group_, row);
        float *out = step.out + int64_t{row} * window_.n_out();
        if ((place.position + 1) % window_.every == 0)
            compress_window(window_, place.table, place.position, out);
        else
            std::fill_n(out, window_.n_out(), 0.0F);
    }

  private:
    int group_;
    CompressedWindow window_;
};

// Inputs: kv, gate.
class Compress : public PagedKind {
  public:
    explicit Compress(CompressSpec spec) : PagedKind("compress", {spec.layer}), spec_(std::move(spec)) {}
    std::vector<WeightRef> weights() const override { return {spec_.bias}; }

  protected:
    PagedOperation operation(const KvStore &store) const override {
        const PagedLayer kept = layer(store, spec_.layer);
        const CompressedWindow window{kept.k, kept.v, weight_floats(spec_.bias), spec_.every, spec_.overlaps};
        return {{{0, kept.group, kept.k}, {1, kept.group, kept.v}},
                std::make_shared<CompressKernel>(kept.group, window)};
    }

  private:
    CompressSpec spec_;
};

class PickKernel : public PagedKernel {
  public:
    PickKernel(int group, const PickedRows &picked, int64_t n_mask) : group_(group), picked_(picked), n_mask_(n_mask) {}
    void run(const PagedStep &step, int row, int) const override {
        const PagedStep::Place place = step.place(group_, row);
        const int n = (place.position + 1) / picked_.pool.every;
        pick_compressed_rows(picked_, place.table, n, step.inputs[0] + int64_t{row} * picked_.n_head * picked_.pool.dim,
                             step.inputs[2] + int64_t{row} * picked_.n_head, step.out + row * n_mask_);
    }

  private:
    int group_;
    PickedRows picked_;
    int64_t n_mask_;
};

// Inputs: q, k, weights.
class PickCompressed : public PagedKind {
  public:
    PickCompressed(const PickSpec &spec, int n_head, int64_t n_mask)
        : PagedKind("pick", {spec.layer}), spec_(spec), n_head_(n_head), n_mask_(n_mask) {}

  protected:
    PagedOperation operation(const KvStore &store) const override {
        const PagedLayer kept = layer(store, spec_.layer);
        return {{{1, kept.group, kept.k}},
                std::make_shared<PickKernel>(kept.group, PickedRows{kept.k, n_head_, spec_.n_picked}, n_mask_)};
    }

  private:
    PickSpec spec_;
    int n_head_;
    int64_t n_mask_;
};

struct CompressedShape {
    int n_head;
    float scale;
    int window;
    int64_t n_mask; // numbers of a row of what was picked; 0: nothing was
};

class AttendKernel : public PagedKernel {
  public:
    AttendKernel(const CompressedShape &shape, const PagedLayer &local, const PagedLayer &compressed,
                 const float *sinks)
        : shape_(shape), local_(local), compressed_(compressed), sinks_(sinks) {}
    int n_parts() const override { return (shape_.n_head + heads_together - 1) / heads_together; }
    void run(const PagedStep &step, int row, int part) const override {
        const int first = part * heads_together, n = std::min(heads_together, shape_.n_head - first);
        const int64_t at = (int64_t{row} * shape_.n_head + first) * local_.k.dim;
        RowAttention attention(step.inputs[0] + at, n, local_.k.dim, shape_.scale,
                               sinks_ == nullptr ? nullptr : sinks_ + first, step.out + at);
        const PagedStep::Place near = step.place(local_.group, row), far = step.place(compressed_.group, row);
        for (int32_t t = std::max(0, near.position + 1 - shape_.window); t <= near.position; ++t)
            attention.add(local_.k, slot_of(near.table, t));
        const int every = compressed_.k.every;
        const float *picked = shape_.n_mask == 0 ? nullptr : step.inputs[3] + row * shape_.n_mask;
        for (int i = 0; i < (far.position + 1) / every; ++i)
            if (picked == nullptr || picked[i] == 0.0F)
                attention.add(compressed_.k, slot_of(far.table, (i + 1) * every - 1));
        attention.finish();
    }

  private:
    static constexpr int heads_together = 8; // read the same rows once
    CompressedShape shape_;
    PagedLayer local_, compressed_;
    const float *sinks_;
};

// Inputs: q, k, compressed rows, and perhaps what was picked.
class AttendCompressed : public PagedKind {
  public:
    AttendCompressed(AttendCompressedSpec spec, const CompressedShape &shape)
        : PagedKind("attend_compressed", {spec.local, spec.compressed}), spec_(std::move(spec)), shape_(shape) {
        spec_.picked.reset(); // an input
    }
    std::vector<WeightRef> weights() const override { return without_null({spec_.sinks}); }

  protected:
    PagedOperation operation(const KvStore &store) const override {
        const PagedLayer local = layer(store, spec_.local), compressed = layer(store, spec_.compressed);
        return {{{1, local.group, local.k}, {2, compressed.group, compressed.k}},
                std::make_shared<AttendKernel>(shape_, local, compressed, weight_floats(spec_.sinks))};
    }

  private:
    AttendCompressedSpec spec_;
    CompressedShape shape_;
};

struct PoolsShape {
    int n_head;
    float scale;
    int every;
    int64_t n_mask; // numbers of a row of what was picked
};

class PoolsKernel : public PagedKernel {
  public:
    PoolsKernel(const PoolsShape &shape, const PagedLayer &kept) : shape_(shape), kept_(kept) {}
    int n_parts() const override { return (shape_.n_head + heads_together - 1) / heads_together; }
    void run(const PagedStep &step, int row, int part) const override {
        const int first = part * heads_together, n = std::min(heads_together, shape_.n_head - first);
        const int64_t at = (int64_t{row} * shape_.n_head + first) * kept_.k.dim;
        RowAttention attention(step.inputs[0] + at, n, kept_.k.dim, shape_.scale, nullptr, step.out + at);
        const PagedStep::Place place = step.place(kept_.group, row);
        const float *picked = step.inputs[2] + row * shape_.n_mask;
        const int32_t n_whole = (place.position + 1) / shape_.every;
        for (int32_t t = 0; t <= place.position; ++t) {
            const int32_t pool = t / shape_.every;
            if (pool >= n_whole || picked[pool] == 0.0F) attention.add(kept_.k, slot_of(place.table, t));
        }
        attention.finish();
    }

  private:
    static constexpr int heads_together = 8; // read the same rows once
    PoolsShape shape_;
    PagedLayer kept_;
};

// Inputs: q, k, what was picked.
class AttendPools : public PagedKind {
  public:
    AttendPools(int which, const PoolsShape &shape)
        : PagedKind("attend_pools", {which}), which_(which), shape_(shape) {}

  protected:
    PagedOperation operation(const KvStore &store) const override {
        const PagedLayer kept = layer(store, which_);
        return {{{1, kept.group, kept.k}}, std::make_shared<PoolsKernel>(shape_, kept)};
    }

  private:
    int which_;
    PoolsShape shape_;
};

ggml_tensor *PagedKind::lower(const StockParts &p) const { return lower_paged(p, operation(p.graph->store)); }

void expect_row(const char *place, const char *what, const TraceTensor &x, const std::vector<int64_t> &rest) {
    expect_tokens(place, what, x);
    if (x.shape().rest != rest)
        throw ShapeError(place,
                         cat(what, " is ", shape_text(x.shape()), ": expected ", shape_text({Lead::tokens, rest})));
}

} // namespace

TraceTensor compress(const TraceTensor &kv, const TraceTensor &gate, CompressSpec spec) {
    const CacheRows &kept = kv.tracer->rows_of(spec.layer);
    const int needed = spec.every * (spec.overlaps ? 2 : 1);
    if (spec.every < 2 || kept.n_kv_head != 1 || kept.v_in_k || kept.v_head_dim != kept.head_dim || kept.every != 1 ||
        kept.window < needed || (spec.overlaps && kept.head_dim % 2 != 0))
        throw ShapeError("compress", cat("layer ", spec.layer, " does not keep K and V of one head for the last ",
                                         needed, " tokens"));
    for (const auto &[name, x] : {std::pair("kv", &kv), std::pair("gate", &gate)})
        expect_row("compress", name, *x, {kept.head_dim});
    expect_f32("compress", spec.bias, {spec.every, kept.head_dim});
    const int64_t n = spec.overlaps ? kept.head_dim / 2 : kept.head_dim;
    kv.tracer->mark_written(spec.layer);
    return kv.tracer->record(std::make_shared<Compress>(std::move(spec)), {kv, gate}, {Lead::tokens, {n}});
}

TraceTensor pick_compressed(const TraceTensor &q, const TraceTensor &k, const TraceTensor &weights,
                            const PickSpec &spec) {
    const int every = q.tracer->rows_of(spec.layer).every;
    const int64_t n = std::max(1, spec.n_ctx / every);
    return q.tracer->record(std::make_shared<PickCompressed>(spec, static_cast<int>(q.shape().rest[0]), n),
                            {q, k, weights}, {Lead::tokens, {n}});
}

TraceTensor attend_compressed(const TraceTensor &q, const TraceTensor &k, const TraceTensor &compressed,
                              AttendCompressedSpec spec) {
    constexpr const char *place = "attend_compressed";
    const CacheRows &near = q.tracer->rows_of(spec.local), &far = q.tracer->rows_of(spec.compressed);
    const int64_t dim = near.head_dim;
    if (!near.v_in_k || near.v_head_dim != near.head_dim || near.window < 1)
        throw ShapeError(place,
                         cat("layer ", spec.local, " does not keep the last tokens' rows, of keys that are values"));
    if (!far.v_in_k || far.head_dim != dim || far.every < 2)
        throw ShapeError(place, cat("layer ", spec.compressed, " does not keep compressed rows of ", dim, " numbers"));
    expect_rank(place, "q", q, 2);
    const int64_t n_head = q.shape().rest[0];
    expect_row(place, "q", q, {n_head, dim});
    expect_row(place, "k", k, {1, dim});
    expect_row(place, "compressed", compressed, {dim});
    expect_positive(place, "scale", spec.scale);
    expect_f32(place, spec.sinks, {n_head});
    CompressedShape shape{static_cast<int>(n_head), spec.scale, near.window, 0};
    std::vector<TraceTensor> inputs{q, k, compressed};
    if (spec.picked) {
        if (spec.picked->tracer->operation(spec.picked->id).kind->name() != "pick")
            throw ShapeError(place, "picked is not a result of pick");
        shape.n_mask = spec.picked->shape().rest[0];
        inputs.push_back(*spec.picked);
    }
    for (int layer : {spec.local, spec.compressed}) q.tracer->mark_written(layer);
    return q.tracer->record(std::make_shared<AttendCompressed>(std::move(spec), shape), inputs,
                            {Lead::tokens, {n_head, dim}});
}

TraceTensor attend_pools(int layer, const TraceTensor &q, const TraceTensor &k, const TraceTensor &picked, int every,
                         float scale) {
    constexpr const char *place = "attend_pools";
    const CacheRows &kept = q.tracer->rows_of(layer);
    const int64_t dim = kept.head_dim;
    if (!kept.v_in_k || kept.v_head_dim != dim || !kept.lifetime().keeps_all() || kept.every != 1)
        throw ShapeError(place, cat("layer ", layer, " does not keep a row of every token, of keys that are values"));
    expect_rank(place, "q", q, 2);
    const int64_t n_head = q.shape().rest[0];
    expect_row(place, "q", q, {n_head, dim});
    expect_row(place, "k", k, {1, dim});
    expect_positive(place, "scale", scale);
    if (every < 2) throw ShapeError(place, cat("pools of ", every, " tokens: expected 2 or more"));
    if (picked.tracer->operation(picked.id).kind->name() != "pick")
        throw ShapeError(place, "picked is not a result of pick");
    const PoolsShape shape{static_cast<int>(n_head), scale, every, picked.shape().rest[0]};
    q.tracer->mark_written(layer);
    return q.tracer->record(std::make_shared<AttendPools>(layer, shape), {q, k, picked}, {Lead::tokens, {n_head, dim}});
}

} // namespace quire
