// Sums of squares, by column, of the inputs of a model's products; importance matrices are computed from them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "graph/trace/trace.h"

namespace quire {

// Observes the products of ggml graphs on the CPU.  The sums do not depend on the number of threads.
class InputSums {
  public:
    struct Sums {
        int64_t n_matrix, n_columns;
        std::vector<double> squares; // [n_matrix, n_columns], summed over the rows of each matrix
        std::vector<int64_t> n_rows; // [n_matrix]
    };

    // The number of rows of the next step; further rows of the graph are padding.
    void begin_step(int n_tokens, int n_logit_rows);
    // Returns `x`, observed; the product with `weight` must read the returned tensor.  `x` is {n, rows} or
    // {n, rows, n_matrix}; with `experts` {n_used, tokens} it is {n, 1 or n_used, tokens}.
    ggml_tensor *watch(ggml_context *context, const Weight &weight, ggml_tensor *x, ggml_tensor *experts, Lead lead);
    const std::map<std::string, Sums> &sums() const { return sums_; } // by the weight's name

  private:
    struct Place {
        const InputSums *owner;
        Sums *sums;
        Lead lead;
        int64_t n_rows() const { return lead == Lead::tokens ? owner->n_tokens_ : owner->n_logit_rows_; }
    };
    static void add_rows(ggml_tensor *x, const ggml_tensor *rows, int thread, int n_threads, void *place);
    static void add_rows_of_experts(ggml_tensor *x, const ggml_tensor *rows, const ggml_tensor *experts, int thread,
                                    int n_threads, void *place);

    int64_t n_tokens_ = 0, n_logit_rows_ = 0;
    std::map<std::string, Sums> sums_;
    std::deque<Place> places_; // graphs have pointers to them
};

} // namespace quire
