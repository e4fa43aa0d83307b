// One exception tree for native code, mirrored by python/quire/errors.py and mapped once in bindings/bind_errors.cpp.
// Texts have the form "[place] what must hold but what was found".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace quire {

// Every kind of error; a test enumerates them against Python's classes.
enum class ErrorKind { load, shape, unsupported, capacity, request, internal, device };
inline constexpr int n_error_kinds = 7;

// The parts of a message, streamed together: cat("n_head must be positive but is ", n).
template <class... Parts> std::string cat(const Parts &...parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, std::string_view place, std::string_view message)
        : std::runtime_error(cat('[', place, "] ", message)), kind_(kind) {}
    ErrorKind kind() const noexcept { return kind_; }

  private:
    ErrorKind kind_;
};

template <ErrorKind K> class ErrorOf : public Error {
  public:
    ErrorOf(std::string_view place, std::string_view message) : Error(K, place, message) {}
};

using LoadError = ErrorOf<ErrorKind::load>;               // a file or checkpoint is bad, missing or does not fit
using ShapeError = ErrorOf<ErrorKind::shape>;             // dtype or shape of an argument
using UnsupportedError = ErrorOf<ErrorKind::unsupported>; // well-formed, but not something Quire does
using CapacityError = ErrorOf<ErrorKind::capacity>;       // memory, blocks or context exhausted
using RequestError = ErrorOf<ErrorKind::request>;         // a request's own parameters
using InternalError = ErrorOf<ErrorKind::internal>;       // an invariant of ours broke
using DeviceError = ErrorOf<ErrorKind::device>;           // a device is lost: its driver failed

} // namespace quire
