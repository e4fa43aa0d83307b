// The instruction sets that kernels are compiled for, and which of them is in use.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace quire {

enum class Isa { portable, avx2, avx512 }; // ascending: each machine that has one has those before it

std::string name(Isa isa);
std::optional<Isa> isa_from_name(const std::string &name);
// Those that this machine runs and this build contains, ascending.
const std::vector<Isa> &supported_isas();
// The one in use: the best supported one unless set_isa chose another.
Isa isa();
// Use a lower one (tests, comparisons), for the whole process; UnsupportedError if this machine does not run it.
void set_isa(Isa isa);

} // namespace quire
