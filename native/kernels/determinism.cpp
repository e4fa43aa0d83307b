#include "kernels/determinism.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace quire {
namespace {

std::atomic<bool> &deterministic() {
    static std::atomic<bool> on = [] {
        const char *asked = std::getenv("QUIRE_DETERMINISTIC");
        return asked != nullptr && std::strcmp(asked, "1") == 0;
    }();
    return on;
}

} // namespace

bool is_deterministic() { return deterministic().load(std::memory_order_relaxed); }
void set_deterministic(bool on) { deterministic().store(on, std::memory_order_relaxed); }

} // namespace quire
