// Whether a row's bits may not depend on what is computed beside it, for the whole process.
#pragma once

namespace quire {

// At first, whether QUIRE_DETERMINISTIC=1 is in the environment.
bool is_deterministic();
void set_deterministic(bool on);

} // namespace quire
