#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>

#include "bindings/testing/bind_testing.h"
#include "bindings/testing/workers.h"
#include "core/error.h"
#include "core/poison.h"
#include "core/q8_layout.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/low_bits.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/kernel_set.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Ids = std::vector<int32_t>;
using Floats = py::array_t<float, py::array::c_style>;

// One step as Python gives it.
struct Batch {
    Ids row_begin, n_kv, table_begin, tables, slots, last_visible;
    std::vector<int32_t> table_size;

    Batch(Ids row_begin_, Ids n_kv_, const std::vector<Ids> &each, Ids slots_, Ids last_visible_)
        : row_begin(std::move(row_begin_)), n_kv(std::move(n_kv_)), slots(std::move(slots_)),
          last_visible(std::move(last_visible_)) {
        for (const Ids &table : each) {
            table_begin.push_back(static_cast<int32_t>(tables.size()));
            table_size.push_back(static_cast<int32_t>(table.size()));
            tables.insert(tables.end(), table.begin(), table.end());
        }
        check();
    }

    int n_rows() const { return row_begin.back(); }
    int n_sequences() const { return static_cast<int>(n_kv.size()); }
    AttentionBatch view() const {
        return {n_rows(),
                n_sequences(),
                row_begin.data(),
                n_kv.data(),
                table_begin.data(),
                tables.data(),
                slots.data(),
                nullptr,
                last_visible.empty() ? nullptr : last_visible.data()};
    }
    // Block ids and slots lie in a pool of n_blocks.
    void check_pool(int64_t n_blocks) const {
        for (int32_t block : tables) {
            if (block < 0 || block >= n_blocks)
                throw ShapeError("kernels",
                                 cat("block ", block, " is out of range: expected one in [0, ", n_blocks, ")"));
        }
        for (int32_t slot : slots) {
            if (slot < 0 || slot >= n_blocks * kv_block_tokens)
                throw ShapeError("kernels", cat("slot ", slot, " is out of range: expected one in [0, ",
                                                n_blocks * kv_block_tokens, ")"));
        }
    }

  private:
    void check() const {
        const size_t n = n_kv.size();
        if (row_begin.size() != n + 1 || table_begin.size() != n || row_begin.front() != 0) {
            throw ShapeError("kernels",
                             cat("row_begin, n_kv and tables have ", row_begin.size(), ", ", n, " and ",
                                 table_begin.size(), " entries: expected one more in row_begin, which starts at 0"));
        }
        for (size_t i = 0; i < n; ++i) {
            const int32_t rows = row_begin[i + 1] - row_begin[i];
            if (rows < 0 || n_kv[i] < rows)
                throw ShapeError("kernels", cat("a sequence has ", rows, " rows: expected 0 to its n_kv, ", n_kv[i]));
            if (int64_t{table_size[i]} * kv_block_tokens < n_kv[i])
                throw ShapeError("kernels",
                                 cat("a table of ", table_size[i], " blocks is too short for ", n_kv[i], " tokens"));
        }
        if (static_cast<int>(slots.size()) != n_rows())
            throw ShapeError("kernels", cat(slots.size(), " slots for ", n_rows(), " rows"));
        if (!last_visible.empty()) check_visible();
    }
    void check_visible() const {
        if (static_cast<int>(last_visible.size()) != n_rows())
            throw ShapeError("kernels",
                             cat("last_visible has ", last_visible.size(), " values for ", n_rows(), " rows"));
        for (size_t s = 0; s < n_kv.size(); ++s)
            for (int32_t row = row_begin[s]; row < row_begin[s + 1]; ++row) {
                const int32_t last = last_visible[static_cast<size_t>(row)];
                const int32_t before = row > row_begin[s] ? last_visible[static_cast<size_t>(row - 1)] : 0;
                if (last < n_kv[s] - (row_begin[s + 1] - row) || last >= n_kv[s] || last < before)
                    throw ShapeError("kernels", cat("row ", row, " sees up to ", last, " of ", n_kv[s], " tokens"));
            }
    }
};

// 4 and 5 bits differ in the bytes of a block and head.
KvType pool_type(const py::array &pool, int head_dim) {
    if (py::isinstance<py::array_t<float>>(pool)) return KvType::f32;
    if (pool.dtype().kind() == 'f' && pool.itemsize() == 2) return KvType::f16;
    if (py::isinstance<py::array_t<uint16_t>>(pool)) return KvType::bf16;
    if (py::isinstance<py::array_t<int8_t>>(pool)) return KvType::q8;
    if (py::isinstance<py::array_t<uint8_t>>(pool)) {
        if (head_dim % low_bits_group != 0)
            throw ShapeError("kernels", cat("heads of 4 or 5 bits are of ", head_dim, ": expected a multiple of 32"));
        const bool is_five = pool.ndim() == 3 && pool.shape(2) == LowBitsLayout(KvType::q5_1, head_dim).bytes();
        return is_five ? KvType::q5_1 : KvType::q4_0;
    }
    throw ShapeError("kernels", cat("a pool is ", py::str(pool.dtype()).cast<std::string>(),
                                    ": expected float32, float16, uint16 (bf16 bits), int8 or uint8"));
}

int dim(const py::array &array, int i) {
    if (array.shape(i) < 1 || array.shape(i) > std::numeric_limits<int>::max() / kv_block_tokens)
        throw ShapeError("kernels", cat("a dimension is ", array.shape(i), ": expected 1 to 2^26 - 1"));
    return static_cast<int>(array.shape(i));
}

void check_array(const char *what, const py::array &array, int n_dims) {
    if (array.ndim() != n_dims || (array.flags() & py::array::c_style) == 0)
        throw ShapeError("kernels", cat(what, " has ", array.ndim(), " dimensions or is not C-contiguous: expected ",
                                        n_dims, " dimensions"));
}

void check_same(const char *what, int64_t wanted, int64_t found) {
    if (wanted != found) throw ShapeError("kernels", cat(what, " is ", found, ": expected ", wanted));
}

struct HeadDims {
    int k, v;
};

// K or V of one type, [n_blocks, n_kv_head, ...].
KvType checked_pool(const char *what, const py::array &pool, int head_dim, bool are_keys) {
    const KvType type = pool_type(pool, head_dim);
    check_array(what, pool, is_coded(type) ? 3 : 4);
    const std::string place = cat(" of ", what);
    if (is_coded(type)) {
        const auto bytes = type == KvType::q8 ? static_cast<int64_t>(q8_head_bytes(head_dim, kv_block_tokens))
                                              : LowBitsLayout(type, head_dim).bytes();
        check_same(cat("the bytes of a block and head", place).c_str(), bytes, dim(pool, 2));
    } else {
        check_same(cat("the tokens of a block", place).c_str(), kv_block_tokens, dim(pool, are_keys ? 3 : 2));
        check_same(cat("the head_dim", place).c_str(), head_dim, dim(pool, are_keys ? 2 : 3));
    }
    return type;
}

// The shape that the two pools have; n_head is theirs too.
AttentionShape shape_of_pools(const py::array &k_pool, const std::optional<py::array> &values, HeadDims dims) {
    const KvType k_type = checked_pool("k_pool", k_pool, dims.k, true);
    if (!values) { // V is stored within K
        check_same("the heads of k_pool, which holds values too,", 1, dim(k_pool, 1));
        if (dims.v > dims.k) throw ShapeError("kernels", cat("v_head_dim is ", dims.v, ": expected at most ", dims.k));
        AttentionShape shape{1, 1, dims.k, dims.v, k_type, k_type, 1.0F};
        shape.v_in_k = true;
        return shape;
    }
    const py::array &v_pool = *values;
    const KvType v_type = checked_pool("v_pool", v_pool, dims.v, false);
    auto goes_with_others = [](KvType type) { return type == KvType::f16 || is_coded(type); };
    if (k_type != v_type && !(goes_with_others(k_type) && goes_with_others(v_type)))
        throw ShapeError("kernels", "k_pool and v_pool have dtypes that do not go together");
    check_same("the number of blocks of v_pool", dim(k_pool, 0), dim(v_pool, 0));
    check_same("the number of heads of v_pool", dim(k_pool, 1), dim(v_pool, 1));
    return {dim(k_pool, 1), dim(k_pool, 1), dims.k, dims.v, k_type, v_type, 1.0F};
}

void write(const KernelSet &kernels, const Floats &k, const std::optional<Floats> &v, py::array k_pool,
           std::optional<py::array> v_pool, const Batch &batch, int n_workers, bool poison_rest) {
    check_array("k", k, 3);
    if (v.has_value() != v_pool.has_value()) throw ShapeError("kernels", "only one of v and v_pool is given");
    if (v) check_array("v", *v, 3);
    const AttentionShape shape = shape_of_pools(k_pool, v_pool, {dim(k, 2), v ? dim(*v, 2) : 1});
    check_workers(n_workers);
    for (const Floats *each : {&k, v ? &*v : &k}) {
        check_same("the rows of k and v", batch.n_rows(), each->shape(0));
        check_same("the heads of k and v", shape.n_kv_head, each->shape(1));
    }
    batch.check_pool(k_pool.shape(0));
    const AttentionBatch view = batch.view();
    void *k_data = k_pool.mutable_data(), *v_data = v_pool ? v_pool->mutable_data() : nullptr;
    const float *k_rows = k.data(), *v_rows = v ? v->data() : nullptr;
    py::gil_scoped_release release;
    Workers(n_workers)->for_each(n_workers, 1, [&](int worker) {
        kv_write(kernels, shape, view, k_rows, v_rows, k_data, v_data, worker, n_workers);
    });
    if (poison_rest) kv_poison_rest(shape, view, k_data, v_data);
}

struct Options {
    float scale;
    std::optional<float> soft_cap;
    std::optional<int> window;
    std::optional<Floats> sinks, bias;
    std::optional<int> v_head_dim;
    int n_workers;
};

AttentionShape checked_shape(const Floats &q, const py::array &k_pool, const std::optional<py::array> &v_pool,
                             const Options &options) {
    check_array("q", q, 3);
    if ((!v_pool || v_pool->ndim() != 4) && !options.v_head_dim)
        throw ShapeError("kernels", "v_head_dim is missing: a cache of codes, or one without v_pool, needs it");
    const int v_head_dim = options.v_head_dim ? *options.v_head_dim : dim(*v_pool, 3);
    if (v_head_dim < 1) throw ShapeError("kernels", cat("v_head_dim is ", v_head_dim, ": expected at least 1"));
    AttentionShape shape = shape_of_pools(k_pool, v_pool, {dim(q, 2), v_head_dim});
    shape.n_head = dim(q, 1);
    if (is_low_bits(shape.v_type)) check_same("v_head_dim modulo 32", 0, v_head_dim % low_bits_group);
    if (shape.n_head % shape.n_kv_head != 0) {
        throw ShapeError("kernels",
                         cat("the heads of q are ", shape.n_head, ": expected a multiple of ", shape.n_kv_head));
    }
    shape.scale = options.scale;
    shape.soft_cap = options.soft_cap.value_or(0.0F);
    shape.window = options.window.value_or(0);
    if (options.soft_cap && !(shape.soft_cap > 0.0F))
        throw ShapeError("kernels", cat("soft_cap is ", shape.soft_cap, ": expected a positive number"));
    if (options.window && shape.window < 1)
        throw ShapeError("kernels", cat("window is ", shape.window, ": expected at least 1"));
    if (options.sinks) {
        check_array("sinks", *options.sinks, 1);
        check_same("the length of sinks", shape.n_head, options.sinks->shape(0));
    }
    if (options.bias) {
        check_array("bias", *options.bias, 2);
        check_same("the heads of bias", shape.n_head, options.bias->shape(0));
    }
    check_workers(options.n_workers);
    return shape;
}

Floats attend(const KernelSet &kernels, const Floats &q, const py::array &k_pool,
              const std::optional<py::array> &v_pool, const Batch &batch, const Options &options) {
    const AttentionShape shape = checked_shape(q, k_pool, v_pool, options);
    if (q.shape(0) < batch.n_rows())
        throw ShapeError("kernels", cat("q has ", q.shape(0), " rows: expected at least ", batch.n_rows()));
    batch.check_pool(k_pool.shape(0));
    Floats out({q.shape(0), q.shape(1), py::ssize_t{shape.v_head_dim}});
    // NaN shows what is not written.
    std::fill_n(out.mutable_data(), out.size(), std::numeric_limits<float>::quiet_NaN());
    AttentionBatch view = batch.view();
    AttentionPlan plan;
    plan.add(shape);
    plan.begin(kernels, view, options.n_workers);
    view.plan = &plan;
    DistanceBias bias;
    if (options.bias) bias = {options.bias->data(), dim(*options.bias, 1)};
    const AttentionData data{.q = q.data(),
                             .k_pool = k_pool.data(),
                             .v_pool = v_pool ? v_pool->data() : nullptr,
                             .sinks = options.sinks ? options.sinks->data() : nullptr,
                             .bias = bias,
                             .picked = {},
                             .out = out.mutable_data(),
                             .n_out_rows = dim(q, 0)};
    py::gil_scoped_release release;
    std::atomic<int> next{0};
    Workers(options.n_workers)->run([&](int) { paged_attention(kernels, shape, view, data, next); });
    return out;
}

} // namespace

void bind_attention(py::module_ &m) {
    m.def("poisons", &poisons);
    py::class_<Batch>(m, "AttentionBatch")
        .def(py::init<Ids, Ids, const std::vector<Ids> &, Ids, Ids>(), py::kw_only(), py::arg("row_begin"),
             py::arg("n_kv"), py::arg("tables"), py::arg("slots"), py::arg("last_visible") = Ids{})
        .def_property_readonly("n_rows", &Batch::n_rows)
        .def_property_readonly("n_sequences", &Batch::n_sequences);
    m.def("kv_write", &write, py::arg("kernels"), py::arg("k"), py::arg("v").none(true), py::arg("k_pool").noconvert(),
          py::arg("v_pool").noconvert().none(true), py::arg("batch"), py::arg("n_workers") = 1,
          py::arg("poison_rest") = false);
    m.def(
        "paged_attention",
        [](const KernelSet &kernels, const Floats &q, const py::array &k_pool, const std::optional<py::array> &v_pool,
           const Batch &batch, float scale, std::optional<float> soft_cap, std::optional<int> window,
           std::optional<Floats> sinks, std::optional<Floats> bias, std::optional<int> v_head_dim, int n_workers) {
            return attend(kernels, q, k_pool, v_pool, batch,
                          {scale, soft_cap, window, std::move(sinks), std::move(bias), v_head_dim, n_workers});
        },
        py::arg("kernels"), py::arg("q"), py::arg("k_pool"), py::arg("v_pool").none(true), py::arg("batch"),
        py::kw_only(), py::arg("scale"), py::arg("soft_cap") = py::none(), py::arg("window") = py::none(),
        py::arg("sinks") = py::none(), py::arg("bias") = py::none(), py::arg("v_head_dim") = py::none(),
        py::arg("n_workers") = 1);
}

} // namespace quire::bindings
