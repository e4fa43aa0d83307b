// Several products at a time, and rows prepared for them.
#pragma once

#include <vector>

#include "graph/cpu/cpu_program.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// Items of all of them are handed out together, those of one product after the other's.
void run_products(const CpuRun &run, const std::vector<Product> &products);

// Writes row x to place `place` of rows in the form that the matrix reads for so many rows.
void to_form(const KernelSet &kernels, const Matrix &matrix, int form_rows, const float *x, uint8_t *rows,
             int64_t place);

} // namespace quire
