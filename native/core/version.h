#pragma once

namespace quire {

/** Of the package.  In a file of its own: with another version only that is compiled anew. */
const char *version();

} // namespace quire
