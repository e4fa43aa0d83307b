#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "kernels/kernel_set.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

InstructionSet isa_named(const std::string &text) {
    if (auto found = instruction_set_from_name(text)) return *found;
    std::string known;
    for (InstructionSet each : supported_instruction_sets()) known += (known.empty() ? "" : ", ") + name(each);
    throw UnsupportedError("isa", cat("the instruction set is '", text, "': expected one of ", known));
}

std::vector<std::string> names_of(const std::vector<InstructionSet> &sets) {
    std::vector<std::string> names;
    for (InstructionSet each : sets) names.push_back(name(each));
    return names;
}

} // namespace

void bind_kernels(py::module_ &m) {
    m.def("supported_isas", [] { return names_of(supported_instruction_sets()); });
    m.def("emulated_isas", [] { return names_of(emulated_instruction_sets()); });
    py::class_<KernelSet>(m, "KernelSet")
        .def(py::init([](const std::optional<std::string> &isa, std::optional<bool> deterministic) {
                 return KernelSet(isa ? std::optional(isa_named(*isa)) : std::nullopt, deterministic);
             }),
             py::arg("isa") = py::none(), py::kw_only(), py::arg("deterministic") = py::none())
        .def_property_readonly("isa", [](const KernelSet &self) { return name(self.instruction_set()); })
        .def_property_readonly("is_deterministic", &KernelSet::is_deterministic)
        .def_property_readonly("multiplies_bf16", &KernelSet::multiplies_bf16)
        .def_property_readonly("determinism_costs", &KernelSet::determinism_costs);
}

} // namespace quire::bindings
