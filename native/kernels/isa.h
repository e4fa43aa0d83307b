// The instruction sets that there are kernels for.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace quire {

// Families of registers, by which most kernels are chosen.
enum class Isa { portable, neon, avx2, avx512 };

// What some machines of a family have beyond its least, each with all before it: dot products of bytes (AVX-VNNI,
// AVX-512 VNNI), of BF16 (AVX512_BF16), tiles of bytes (AMX); small matrices of bytes (NEON's i8mm).  Software can
// stand in for tiles where a machine has none.
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
// Whether or not this build contains them; the best one last.
std::vector<InstructionSet> instruction_sets_of_this_machine();

} // namespace quire
