// Cuts a trace into pieces by the device that each operation runs on.
//
// The user says where weights lie, and an operation runs where its matrices do.  Operations without matrices run
// where their inputs are.  Neighbours in one place form a piece: a trace of its own, lowered like any other.
// A value that one piece computes and others read is a boundary (graph/trace/boundary.h).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/trace/boundary.h"
#include "graph/trace/trace.h"

namespace quire {

// Another process, the CPU, or one of the model's devices: the first, and those after it.
enum class Place : int { elsewhere = -2, cpu = -1, device = 0 };
constexpr Place device_place(size_t number) { return static_cast<Place>(number); }
constexpr bool is_device(Place place) { return place >= Place::device; }
constexpr size_t device_number(Place place) { return static_cast<size_t>(place); }

// By weights' names.  Other operations follow those around them.
using PlacesOfWeights = std::map<std::string, Place>;

// Where layers keep their rows, and where states are.
struct PlacesOfCache {
    std::map<int, Place> rows;
    std::map<StatePlace, Place> states;
};

// A part of a trace, in its order: inputs of the step, then operations and values that cross a boundary.
struct Piece {
    Place place;
    Trace trace; // the numbers of output and hidden state are -1 where another piece has them
};

struct CutTrace {
    std::vector<Piece> pieces;
    // Values that the caller reads and a piece before the last produced; null where the last one has it.
    std::shared_ptr<Boundary> output = nullptr, hidden = nullptr;
    std::vector<std::shared_ptr<Boundary>> taps = {}; // empty where there is one piece, whose trace has them
};

// A trace that runs at one place.
inline CutTrace uncut(const Trace &trace, Place place) { return {{{place, trace}}}; }

// Adds layers and states that the trace writes or reads to `cache`; rows that are there already stay.  `devices`:
// those of the model; operations that they do not support run on the CPU.
CutTrace cut(const Trace &trace, const PlacesOfWeights &places, const std::vector<Device> &devices,
             PlacesOfCache &cache);

// The pieces of all stages of a pipeline, the same on all ranks; those of other stages than the group's own are elsewhere.
// All that later pieces or the caller read is a boundary in the host's memory.
CutTrace cut_stages(const Trace &trace, const Stages &stages, PlacesOfCache &cache);

// Operations of all pieces there, as one trace that tells which weights they read.
Trace operations_at(Place place, const std::vector<Piece> &pieces);

// Contents of a place: bytes of the weights that it reads, as the file has them, by name, and the layers it caches.
struct PlacedPart {
    std::map<std::string, size_t> weights = {};
    std::set<int> layers = {};
    size_t state_bytes = 0; // per sequence
};
std::map<Place, PlacedPart> placed_parts(const Trace &trace, const PlacesOfWeights &places,
                                         const std::vector<Device> &devices);

// Names of weights by which operations can be placed, an encoder's included.
std::set<std::string> placed_names(const Trace &trace);

} // namespace quire
