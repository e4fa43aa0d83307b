// A pass whose pieces are stages of a pipeline, in several processes.
#include <span>

#include "core/error.h"
#include "graph/run/micro_batches.h"
#include "graph/run/pass.h"

namespace quire {

// The same on all ranks, as they have the same pieces.
void Pass::lay_out_exchange(const Boundaries &all, int max_rows, int max_logit_rows) {
    constexpr size_t line_bytes = 64;
    size_t at = 0;
    for (const std::shared_ptr<Boundary> &boundary : all) {
        const int n_rows = boundary->shape.lead == Lead::tokens ? max_rows : max_logit_rows;
        const size_t bytes = static_cast<size_t>(boundary->row_floats() * n_rows) * sizeof(float);
        const std::span<uint8_t> there = group_->exchange();
        if (at + bytes > there.size())
            throw CapacityError("parallel", cat("stages hand over more than ", there.size(),
                                                " bytes at a time: use a smaller max_step_tokens"));
        exchanged_.emplace_back(boundary.get(), reinterpret_cast<float *>(there.data() + at));
        at += (bytes + line_bytes - 1) / line_bytes * line_bytes;
    }
    show_rows(0, 0);
}

void Pass::show_rows(size_t first_row, size_t first_logit_row) {
    for (const auto &[boundary, begin] : exchanged_) {
        const size_t first = boundary->shape.lead == Lead::tokens ? first_row : first_logit_row;
        boundary->host = begin + first * static_cast<size_t>(boundary->row_floats());
    }
}

// Each stage works on its piece of one part after the other, so that all stages are busy once the first parts are
// through.  Numbers of parts grow from step to step.
float *Pass::run_stages(const StepBatch &batch) {
    std::vector<StepBatch> parts = micro_batches(batch, 2 * static_cast<size_t>(group_->n_stages()));
    if (parts.empty()) parts.push_back(batch);
    const int n_pieces = static_cast<int>(pieces().size());
    for (int p = 0; p < n_pieces; ++p) {
        Runner &runner = runners_[static_cast<size_t>(p)];
        if (!runner.program) continue;
        uint32_t number = n_parts_;
        size_t first_row = 0, first_logit_row = 0;
        for (const StepBatch &part : parts) {
            ++number;
            show_rows(first_row, first_logit_row);
            if (p > 0) group_->await(p - 1, number);
            run_program(pieces()[static_cast<size_t>(p)], *runner.program, part);
            if (group_->part() == 0) group_->announce(p, number);
            first_row += part.tokens.size();
            first_logit_row += part.logit_rows.size();
        }
    }
    show_rows(0, 0);
    n_parts_ += static_cast<uint32_t>(parts.size());
    if (group_->rank() == 0) group_->await(n_pieces - 1, n_parts_); // the caller reads its values
    return trace_.output->host;
}

} // namespace quire
