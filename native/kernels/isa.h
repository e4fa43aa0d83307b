// The instruction sets that Quire has kernels for.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace quire {

// Register families; most kernels depend on the family alone.
enum class Isa { portable, neon, avx2, avx512 };

// Extensions of a family.  On x86 each includes the ones before it: dot products of bytes (AVX-VNNI, AVX-512 VNNI), of
// BF16 (AVX512_BF16), tiles (AMX, emulated_tiles in software).  On NEON: products of small byte matrices (i8mm).
enum class DotProducts { none, bytes, bf16, tiles, emulated_tiles, matrices };

struct InstructionSet {
    Isa isa;
    DotProducts dot_products = DotProducts::none;
    bool operator==(const InstructionSet &) const = default;
};

// "portable", "neon", "neoni8mm", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "avx512amx",
// "avx512amx-emulated".
std::string name(InstructionSet set);
std::optional<InstructionSet> instruction_set_from_name(const std::string &name);
// The instruction sets of this machine, the best one last; this build may lack some of them.
std::vector<InstructionSet> instruction_sets_of_this_machine();

} // namespace quire
