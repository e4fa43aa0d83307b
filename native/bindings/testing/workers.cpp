#include "bindings/testing/workers.h"

#include <map>

#include "core/error.h"

namespace quire::bindings {

void check_workers(int n_workers) {
    if (n_workers < 1 || n_workers > 256)
        throw ShapeError("kernels", cat("n_workers is ", n_workers, ": expected 1 to 256"));
}

Workers::Workers(int n_workers) : shared_(shared(n_workers)), lock_(shared_.mutex) {}

Workers::Shared &Workers::shared(int n_workers) {
    // Never destroyed: a forked process has none of the threads that a team's end would wait for.
    static auto &teams = *new std::map<int, Shared>;
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    return teams.try_emplace(n_workers, n_workers).first->second;
}

} // namespace quire::bindings
