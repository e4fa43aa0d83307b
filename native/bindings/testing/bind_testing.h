// The submodule quire._native.testing: native parts by themselves, for tests and benchmarks.  Wheels lack it.
#pragma once

#include <pybind11/pybind11.h>

namespace quire::bindings {

void bind_testing(pybind11::module_ &m); // all of these
void bind_attention(pybind11::module_ &m);
void bind_matmul(pybind11::module_ &m);
void bind_rows(pybind11::module_ &m);
void bind_cache_pool(pybind11::module_ &m); // CachePool, SequenceCache, hashes of blocks
void bind_scheduler(pybind11::module_ &m); // a Scheduler on the caller's clock
void bind_sampler(pybind11::module_ &m);
void bind_drafting(pybind11::module_ &m);
void bind_fakes(pybind11::module_ &m); // a made-up executor and drafter

} // namespace quire::bindings
