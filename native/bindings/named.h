// Values that Python calls by names.
#pragma once

#include <map>
#include <string>

#include "core/error.h"
#include "graph/run/placement.h"

namespace quire::bindings {

template <class Value> struct Named {
    const char *name;
    Value value;
};

// The value called `text`; UnsupportedError lists the names.
template <class Value, size_t N>
Value parse(const char *place, const char *what, const std::string &text, const Named<Value> (&names)[N]) {
    std::string known;
    for (const auto &named : names) {
        if (text == named.name) return named.value;
        known += cat(known.empty() ? "" : ", ", named.name);
    }
    throw UnsupportedError(place, cat(what, " is '", text, "': expected one of ", known));
}

// By weight "cpu", or "device", "device1" and so on for the model's devices.
PlacesOfWeights places_named(const std::map<std::string, std::string> &given);

} // namespace quire::bindings
