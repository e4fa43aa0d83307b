#include "graph/run/placement.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/rank_group.h"

namespace quire {
namespace {

constexpr int n_step_values = 4;

size_t slot(int i) { return static_cast<size_t>(i); }

// Matrices where it has some, else its other weights.
std::vector<WeightRef> placing_weights(const OperationKind &kind) {
    std::vector<WeightRef> matrices = kind.matrices();
    return matrices.empty() ? kind.weights() : matrices;
}

// The place of an operation's weights.  If some are on the CPU and some on a device, it is the CPU; if they are on two
// devices, it is the first one.
std::optional<Place> said(const OperationKind &kind, const PlacesOfWeights &places) {
    std::optional<Place> found;
    for (const WeightRef &weight : placing_weights(kind)) {
        const auto place = places.find(weight->name);
        if (place == places.end()) continue;
        if (!found || place->second < *found) found = place->second;
    }
    return found;
}

std::vector<Place> places_of(const Trace &trace, const PlacesOfWeights &places, const std::vector<Device> &devices,
                             PlacesOfCache &cache) {
    std::vector<Place> found(trace.operations.size(), Place::cpu);
    for (int i = n_step_values; i < static_cast<int>(found.size()); ++i) {
        const Operation &operation = trace.operations[slot(i)];
        Place place = found[slot(i) - 1]; // for operations that read nothing but the step
        const auto is_made = [](int input) { return input >= n_step_values; };
        if (std::ranges::any_of(operation.inputs, is_made)) {
            place = Place::cpu;
            int last = -1; // the last input that is on a device
            for (int input : operation.inputs)
                if (is_made(input) && is_device(found[slot(input)])) last = std::max(last, input);
            if (last >= 0) place = found[slot(last)];
        }
        place = said(*operation.kind, places).value_or(place);
        if (is_device(place) && !operation.kind->runs_on(devices.at(device_number(place)))) place = Place::cpu;
        if (const std::optional<StatePlace> state = operation.kind->state()) cache.states[*state] = place;
        for (const int layer : operation.kind->cached_layers())
            place = cache.rows.try_emplace(layer, place).first->second;
        found[slot(i)] = place;
    }
    return found;
}

// Cuts one trace, operation by operation.
class Cutter {
  public:
    Cutter(const Trace &trace, std::vector<Place> places, bool is_staged = false)
        : trace_(trace), places_(std::move(places)), is_staged_(is_staged), made_(places_.size()),
          boundaries_(places_.size()) {}

    CutTrace cut() {
        const auto n = static_cast<int>(places_.size());
        for (int i = n_step_values; i < n; ++i) add(i);
        CutTrace made;
        if (pieces_.size() == 1) {
            pieces_[0].trace.taps = trace_.taps; // one piece has the numbers of the whole
        } else {
            made.output = kept_by_others(trace_.output);
            if (trace_.hidden >= 0) made.hidden = kept_by_others(trace_.hidden);
            for (const Tap &tap : trace_.taps) made.taps.push_back(to_the_end(tap.operation));
        }
        for (int i = n_step_values; i < n; ++i)
            if (boundaries_[slot(i)])
                pieces_[slot(made_[slot(i)].piece)].trace.left.push_back({made_[slot(i)].number, boundaries_[slot(i)]});
        made.pieces = std::move(pieces_);
        return made;
    }

  private:
    struct Made {
        int piece, number; // number: in the piece
    };

    void begin_piece(Place place) {
        Trace piece{trace_.cache, {}, -1, trace_.kind, trace_.n_vocab};
        piece.encoder = trace_.encoder;
        here_.clear();
        for (int i = 0; i < n_step_values; ++i) {
            piece.operations.push_back(trace_.operations[slot(i)]);
            here_[i] = i;
        }
        pieces_.push_back({place, std::move(piece)});
    }

    void add(int i) {
        if (pieces_.empty() || pieces_.back().place != places_[slot(i)]) begin_piece(places_[slot(i)]);
        Operation operation = trace_.operations[slot(i)];
        for (int &input : operation.inputs) input = in_this_piece(input);
        Trace &piece = pieces_.back().trace;
        const auto number = static_cast<int>(piece.operations.size());
        piece.operations.push_back(std::move(operation));
        here_[i] = number;
        made_[slot(i)] = {static_cast<int>(pieces_.size()) - 1, number};
        if (i == trace_.output) piece.output = number;
        if (i == trace_.hidden) piece.hidden = number;
    }

    std::shared_ptr<Boundary> boundary_of(int i) {
        std::shared_ptr<Boundary> &boundary = boundaries_[slot(i)];
        if (boundary) return boundary;
        boundary = std::make_shared<Boundary>();
        boundary->shape = trace_.operations[slot(i)].shape;
        boundary->first = boundary->last = made_[slot(i)].piece;
        return boundary;
    }

    // A value that the caller reads after the last piece.
    std::shared_ptr<Boundary> to_the_end(int i) {
        std::shared_ptr<Boundary> boundary = boundary_of(i);
        boundary->in_host = true;
        boundary->last = static_cast<int>(pieces_.size()) - 1;
        return boundary;
    }

    std::shared_ptr<Boundary> kept_by_others(int i) {
        const auto [piece, number] = made_[slot(i)];
        if (piece + 1 == static_cast<int>(pieces_.size())) return is_staged_ ? to_the_end(i) : nullptr;
        Trace &trace = pieces_[slot(piece)].trace;
        (i == trace_.output ? trace.output : trace.hidden) = -1;
        return to_the_end(i);
    }

    // The number of an earlier value in the last piece, which it is carried into if need be.
    int in_this_piece(int i) {
        if (const auto found = here_.find(i); found != here_.end()) return found->second;
        const bool stays = !is_staged_ && places_[slot(i)] == pieces_.back().place && is_device(places_[slot(i)]);
        const std::shared_ptr<Boundary> boundary = boundary_of(i);
        (stays ? boundary->on_device : boundary->in_host) = true;
        boundary->last = static_cast<int>(pieces_.size()) - 1;
        std::vector<Operation> &operations = pieces_.back().trace.operations;
        operations.push_back({carried(boundary, stays), {}, boundary->shape});
        return here_[i] = static_cast<int>(operations.size()) - 1;
    }

    const Trace &trace_;
    std::vector<Place> places_;
    bool is_staged_;
    std::vector<Made> made_; // by operation
    std::vector<std::shared_ptr<Boundary>> boundaries_; // by operation; null where nobody else reads it
    std::vector<Piece> pieces_;
    std::map<int, int> here_; // numbers in the last piece
};

} // namespace

CutTrace cut(const Trace &trace, const PlacesOfWeights &places, const std::vector<Device> &devices,
             PlacesOfCache &cache) {
    return Cutter(trace, places_of(trace, places, devices, cache)).cut();
}

CutTrace cut_stages(const Trace &trace, const Stages &stages, PlacesOfCache &cache) {
    const RankGroup &group = *stages.group;
    PlacesOfWeights places;
    for (const auto &[name, stage] : stages.of_weights) places[name] = device_place(static_cast<size_t>(stage));
    const std::vector<Device> devices(static_cast<size_t>(group.n_stages()), find_device("CPU"));
    std::vector<Place> found = places_of(trace, places, devices, cache);
    std::replace(found.begin(), found.end(), Place::cpu, Place::device); // operations without weights before any others
    CutTrace made = Cutter(trace, std::move(found), true).cut();
    if (made.pieces.size() > static_cast<size_t>(RankGroup::max_pieces))
        throw UnsupportedError("parallel", cat("layers alternate between stages ", made.pieces.size(), " times"));
    auto here = [&](Place &place) {
        const auto stage = place == Place::cpu ? 0 : static_cast<int>(device_number(place));
        place = stage == group.stage() ? Place::cpu : Place::elsewhere;
    };
    for (Piece &piece : made.pieces) here(piece.place);
    for (auto &[layer, place] : cache.rows) here(place);
    for (auto &[state, place] : cache.states) here(place);
    return made;
}

Trace operations_at(Place place, const std::vector<Piece> &pieces) {
    Trace all{{}, {}, -1, OutputKind::vectors, 0};
    for (const Piece &piece : pieces)
        if (piece.place == place)
            all.operations.insert(all.operations.end(), piece.trace.operations.begin(), piece.trace.operations.end());
    return all;
}

std::map<Place, PlacedPart> placed_parts(const Trace &trace, const PlacesOfWeights &places,
                                         const std::vector<Device> &devices) {
    PlacesOfCache cache;
    std::map<Place, PlacedPart> parts;
    std::vector<const Trace *> passes;
    if (trace.encoder) passes.push_back(trace.encoder.get());
    passes.push_back(&trace);
    for (const Trace *pass : passes) {
        const std::vector<Place> found = places_of(*pass, places, devices, cache);
        for (size_t i = 0; i < found.size(); ++i)
            for (const auto &weights : {pass->operations[i].kind->matrices(), pass->operations[i].kind->weights()})
                for (const WeightRef &weight : weights)
                    parts[found[i]].weights[weight->name] = weight->tensor.size_bytes();
    }
    for (const auto &[layer, place] : cache.rows) parts[place].layers.insert(layer);
    for (const auto &[state, place] : cache.states) {
        const CacheSpec &spec = trace.cache[static_cast<size_t>(state.layer)];
        parts[place].state_bytes +=
            static_cast<size_t>(spec.states[static_cast<size_t>(state.index)].n) * sizeof(float);
    }
    return parts;
}

std::set<std::string> placed_names(const Trace &trace) {
    std::set<std::string> names;
    if (trace.encoder) names = placed_names(*trace.encoder);
    for (const Operation &operation : trace.operations)
        for (const WeightRef &weight : placing_weights(*operation.kind)) names.insert(weight->name);
    return names;
}

} // namespace quire
