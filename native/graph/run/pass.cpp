#include "graph/run/pass.h"

#include <algorithm>
#include <cstring>

#include "graph/cpu/lower_cpu.h"

namespace quire {

Pass::Pass(CutTrace trace, std::shared_ptr<RankGroup> group)
    : trace_(std::move(trace)), runners_(trace_.pieces.size()), group_(std::move(group)) {}

bool Pass::is_at(Place place) const {
    return std::ranges::any_of(pieces(), [place](const Piece &piece) { return piece.place == place; });
}

void Pass::add_boundaries(const std::vector<const Backend *> &devices, int max_rows, int max_logit_rows) {
    Boundaries all;
    std::vector<Boundaries> by_device(devices.size());
    for (const Piece &piece : pieces())
        for (const Left &left : piece.trace.left) {
            all.push_back(left.boundary);
            if (is_device(piece.place)) by_device[device_number(piece.place)].push_back(left.boundary);
        }
    if (group_) return lay_out_exchange(all, max_rows, max_logit_rows);
    host_boundaries_ = BoundaryMemory::in_host(all, *devices.front(), max_rows, max_logit_rows);
    for (size_t d = 0; d < devices.size(); ++d)
        device_boundaries_.push_back(BoundaryMemory::on_device(by_device[d], *devices[d], max_rows, max_logit_rows));
}

void Pass::add_graphs(Place place, StockDevice &device, const GraphLimits &limits) {
    for (size_t p = 0; p < pieces().size(); ++p)
        if (pieces()[p].place == place)
            runners_[p].graphs = std::make_unique<StockGraphs>(device, pieces()[p].trace, limits);
}

void Pass::add_programs(OwnKernels &own, const KvStore &store, CpuProgramLimits limits) {
    team_ = own.team.get();
    for (size_t p = 0; p < pieces().size(); ++p)
        if (pieces()[p].place == Place::cpu)
            runners_[p].program.emplace(lower_cpu({pieces()[p].trace, store, own.matrices, limits, own.kernels}));
}

size_t Pass::program_bytes() const {
    size_t most = 0;
    for (const Runner &runner : runners_)
        if (runner.program) most = std::max(most, runner.program->size_bytes());
    return most;
}

void Pass::place(uint8_t *memory) {
    for (Runner &runner : runners_)
        if (runner.program) runner.program->place(memory);
}

float *Pass::run(const StepBatch &batch) {
    if (group_) return run_stages(batch);
    float *made = nullptr;
    for (size_t p = 0; p < runners_.size(); ++p) {
        Runner &runner = runners_[p];
        made = runner.program ? run_program(pieces()[p], *runner.program, batch) : runner.graphs->run(batch);
    }
    return trace_.output ? trace_.output->host : made;
}

float *Pass::run_program(const Piece &piece, CpuProgram &program, const StepBatch &batch) {
    float *output = program.run(batch, *team_);
    const Trace &trace = piece.trace;
    if (group_ && group_->part() > 0) return output; // the stage's first rank hands over what all have
    for (size_t i = 0; i < trace.left.size(); ++i) {
        const Boundary &boundary = *trace.left[i].boundary;
        const size_t n_rows = boundary.shape.lead == Lead::tokens ? batch.tokens.size() : batch.logit_rows.size();
        std::memcpy(boundary.host, program.tap(trace.taps.size() + i),
                    n_rows * static_cast<size_t>(boundary.row_floats()) * sizeof(float));
    }
    return output;
}

const float *Pass::hidden() const {
    if (trace_.hidden) return trace_.hidden->host;
    const Runner &last = runners_.back();
    return last.program ? last.program->hidden() : last.graphs->hidden();
}

float *Pass::maxima() const {
    const Runner &last = runners_.back();
    if (trace_.output) return nullptr;
    return last.program ? last.program->maxima() : last.graphs->maxima();
}

const float *Pass::tap(size_t i) const {
    if (!trace_.taps.empty()) return trace_.taps.at(i)->host;
    const Runner &only = runners_.front();
    return only.program ? only.program->tap(i) : only.graphs->tap(i);
}

size_t Pass::n_nodes() const {
    size_t n = 0;
    for (const Runner &runner : runners_)
        if (runner.program) n += runner.program->n_nodes();
    return n;
}

std::set<std::string> Pass::stock_operations() const {
    std::set<std::string> names;
    for (const Runner &runner : runners_)
        if (runner.program)
            names.insert(runner.program->stock_operations().begin(), runner.program->stock_operations().end());
    return names;
}

} // namespace quire
