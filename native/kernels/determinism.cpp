#include "kernels/determinism.h"

#include <atomic>

#include "core/environment.h"

namespace quire {
namespace {

std::atomic<bool> &deterministic() {
    static std::atomic<bool> on = is_switched_on("QUIRE_DETERMINISTIC");
    return on;
}

} // namespace

bool is_deterministic() { return deterministic().load(std::memory_order_relaxed); }
void set_deterministic(bool on) { deterministic().store(on, std::memory_order_relaxed); }

} // namespace quire
