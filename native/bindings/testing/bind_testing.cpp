#include "bindings/testing/bind_testing.h"

namespace quire::bindings {

void bind_testing(pybind11::module_ &m) {
    bind_attention(m);
    bind_matmul(m);
    bind_rows(m);
    bind_cache_pool(m);
    bind_scheduler(m);
    bind_sampler(m);
    bind_drafting(m);
    bind_fakes(m);
}

} // namespace quire::bindings
