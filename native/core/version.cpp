#include "core/version.h"

namespace quire {

const char *version() { return QUIRE_VERSION; }

} // namespace quire
