// The exceptions of native code, mirrored by python/quire/errors.py and mapped in bindings/bind_errors.cpp.
// A message starts with its place in brackets and says what went wrong, with the offending value, then what to do:
// "[device] no such device: 'CUDA3' (available: CPU, CUDA0)".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace quire {

// Every kind of error; a test compares them with Python's classes.
enum class ErrorKind { load, shape, unsupported, capacity, request, internal, device };
inline constexpr int n_error_kinds = 7;

// Concatenate the parts of a message: cat("n_head ", n, " is out of range: expected 1 or more").
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

using LoadError = ErrorOf<ErrorKind::load>; // a file or checkpoint is missing, malformed or inconsistent
using ShapeError = ErrorOf<ErrorKind::shape>; // an argument has the wrong dtype or shape
using UnsupportedError = ErrorOf<ErrorKind::unsupported>; // valid, but not supported by Quire or this device
using CapacityError = ErrorOf<ErrorKind::capacity>; // memory, blocks or context exhausted
using RequestError = ErrorOf<ErrorKind::request>; // a request's own parameters are invalid
using InternalError = ErrorOf<ErrorKind::internal>; // an invariant of Quire broke
using DeviceError = ErrorOf<ErrorKind::device>; // a device is lost because its driver failed

} // namespace quire
