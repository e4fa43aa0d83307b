#include "graph/cpu/products.h"

#include <algorithm>

namespace quire {

void run_products(const CpuRun &run, const std::vector<Product> &products) {
    std::vector<ProductItems> items;
    std::vector<int> ends;
    for (const Product &product : products) {
        items.emplace_back(run.kernels, product, run.team.n_workers());
        ends.push_back((ends.empty() ? 0 : ends.back()) + items.back().size());
    }
    if (items.empty()) return;
    run.team.for_each(ends.back(), 1, [&](int item) {
        const auto at = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), item) - ends.begin());
        items[at].run(item - (at == 0 ? 0 : ends[at - 1]));
    });
}

void to_form(const KernelSet &kernels, const Matrix &matrix, int form_rows, const float *x, uint8_t *rows,
             int64_t place) {
    const RowForm form = matrix.form(form_rows);
    uint8_t *to = rows + place * matrix.x_row_bytes(form);
    if (form != RowForm::floats) return round_row(kernels, matrix, form, x, to);
    std::copy(x, x + matrix.n_in, reinterpret_cast<float *>(to));
}

} // namespace quire
