// Instruction sets that kernels exist for, and the one in use.
#pragma once

#include <string>
#include <vector>

namespace quire {

enum class Isa { portable, avx2, avx512 }; // each contains the ones before it

Isa isa();                                // the best of this machine, unless a lower one is forced
std::vector<Isa> supported_isas();        // of this machine, lowest first
bool force_isa(Isa wanted);               // false, and nothing changes, when the machine lacks it
std::string isa_name(Isa isa);

} // namespace quire
