// Lowers every operation to ggml's operators, for every device: the fallback, and the oracle of the kernels.
#pragma once

#include <initializer_list>

#include "graph/stock/input_sums.h"
#include "graph/stock/lowering.h"

struct ggml_backend;

namespace quire {

class DeviceAdapters;
class DeviceWeights;

// A graph under construction.
struct StockGraph {
    const Trace &trace;
    const KvStore &store;
    LoweredGraph &out;
    std::vector<ggml_tensor *> values{}; // by operation number, up to the last lowered one
    std::vector<int> n_reads{}; // by operation number, including readers outside the graph
    struct Written {
        ggml_tensor *k, *v; // the pools of a layer after the step's rows were written
    };
    std::map<int, Written> written{}; // by layer
    // Masks of picked tokens, by the operation's value and part.
    std::map<std::pair<ggml_tensor *, int>, ggml_tensor *> picked{};
    std::map<std::pair<ggml_tensor *, ggml_tensor *>, ggml_tensor *> products{}; // by merged matrix and input
    ggml_backend *device = nullptr; // its flash attention and Quire's kernels are used if it has them; null on the CPU
    DeviceWeights *copies = nullptr;
    const DeviceAdapters *adapters = nullptr;
    ggml_context *context() const { return out.context.get(); }

    ggml_tensor *new_input(ggml_type type, std::initializer_list<int64_t> ne, const char *label);
    // Inputs that several layers share are created once per graph.
    template <class Key, class Make>
    ggml_tensor *shared_input(std::map<Key, ggml_tensor *> &inputs, Key which, const Make &make) {
        auto [place, fresh] = inputs.try_emplace(which, nullptr);
        if (fresh) place->second = make();
        return place->second;
    }
};

class StockLowering : public Lowering {
  public:
    // `device`: null on the CPU, whose graphs compute all scores and so are the oracle of devices.  `sums`: observes the
    // inputs of products; may be null.  `copies`: of weights that are not on the device; may be null.
    StockLowering(const KvStore &store, ggml_backend *device, InputSums *sums, DeviceWeights *copies,
                  const DeviceAdapters &adapters)
        : store_(store), device_(device), sums_(sums), copies_(copies), adapters_(adapters) {}
    LoweredGraph lower(const Trace &trace, const GraphKey &key) const override;

  private:
    ggml_tensor *lower_operation(StockGraph &graph, const Operation &operation) const;
    static void lower_left(StockGraph &graph, const Left &left);
    const KvStore &store_;
    ggml_backend *device_;
    InputSums *sums_;
    DeviceWeights *copies_;
    const DeviceAdapters &adapters_;
};

} // namespace quire
