#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "graph/run/lead_executor.h"
#include "graph/trace/fused_operations.h"
#include "graph/trace/shared_operations.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

// Memory of a buffer of Python's, which stays as long as it is used.
std::shared_ptr<uint8_t> memory_of(const py::buffer &buffer, size_t &size_bytes) {
    auto held = std::make_unique<py::buffer_info>(buffer.request(true));
    size_bytes = static_cast<size_t>(held->size * held->itemsize);
    auto *data = static_cast<uint8_t *>(held->ptr);
    return {data, [kept = held.release()](uint8_t *) {
                py::gil_scoped_acquire acquire;
                delete kept;
            }};
}

} // namespace

void bind_parallel(py::module_ &m) {
    py::class_<RankGroup, std::shared_ptr<RankGroup>>(m, "RankGroup")
        .def(py::init([](const py::buffer &memory, int rank, int n_split, int n_stages) {
                 size_t size_bytes = 0;
                 auto data = memory_of(memory, size_bytes);
                 return std::make_shared<RankGroup>(std::move(data), size_bytes,
                                                    RankGroup::Sizes{rank, n_split, n_stages});
             }),
             py::arg("memory"), py::kw_only(), py::arg("rank"), py::arg("n_split") = 1, py::arg("n_stages") = 1)
        .def_static("needed_bytes", &RankGroup::needed_bytes, py::arg("n_ranks"), py::kw_only(),
                    py::arg("command_bytes") = 0, py::arg("exchange_bytes") = 0)
        .def_property_readonly("rank", &RankGroup::rank)
        .def_property_readonly("part", &RankGroup::part)
        .def_property_readonly("stage", &RankGroup::stage)
        .def_property_readonly("n_split", &RankGroup::n_split)
        .def_property_readonly("n_stages", &RankGroup::n_stages)
        .def_property_readonly("is_broken", &RankGroup::is_broken)
        .def("fail", &RankGroup::fail, py::arg("message"))
        .def("check", &RankGroup::check);
    py::class_<LeadExecutor, Executor, std::shared_ptr<LeadExecutor>>(m, "LeadExecutor")
        .def(py::init<std::shared_ptr<GraphExecutor>, std::shared_ptr<RankGroup>>(), py::arg("own").none(false),
             py::arg("group").none(false));
    m.def("follow", &follow, py::arg("executor"), py::arg("group"), py::call_guard<py::gil_scoped_release>());
    m.def(
        "staged",
        [](Trace trace, std::shared_ptr<RankGroup> group, std::map<std::string, int> stages) {
            for (const auto &[name, stage] : stages)
                if (stage < 0 || stage >= group->n_stages())
                    throw ShapeError("parallel", cat(name, " is in stage ", stage, " of ", group->n_stages()));
            trace.stages = std::make_shared<const Stages>(std::move(group), std::move(stages));
            return trace;
        },
        py::arg("trace"), py::arg("group").none(false), py::arg("stages"));
    m.def("weight_names", [](const Trace &trace) { return placed_names(trace); }, py::arg("trace"));
    m.def("all_reduce", &all_reduce, py::arg("x"), py::arg("group").none(false));
    m.def(
        "share_of_experts",
        [](MoeSpec spec, int first) {
            spec.first_expert = first;
            return spec;
        },
        py::arg("spec"), py::arg("first"));
}

} // namespace quire::bindings
