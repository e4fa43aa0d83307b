#pragma once

namespace quire {

/** The package's version.  version.cpp is a file of its own so that a new version recompiles nothing else. */
const char *version();

} // namespace quire
