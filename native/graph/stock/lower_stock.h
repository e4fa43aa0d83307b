// ggml's own operators for every operation, on every device: the fallback and the oracle.
#pragma once

#include <initializer_list>

#include "graph/stock/input_sums.h"
#include "graph/stock/lowering.h"

struct ggml_backend;

namespace quire {

class DeviceWeights;

// A graph while it is built.
struct StockGraph {
    const Trace &trace;
    const KvStore &store;
    LoweredGraph &out;
    std::vector<ggml_tensor *> values{}; // by operation number; as many as are lowered
    std::vector<int> n_reads{}; // by operation number, those from outside as well
    struct Written {
        ggml_tensor *k, *v; // the pools of a layer with the step's rows in them
    };
    std::map<int, Written> written{}; // by layer
    std::map<std::pair<ggml_tensor *, ggml_tensor *>, ggml_tensor *>
        products{}; // by merged matrix and what it multiplies
    ggml_backend *device = nullptr; // its flash attention and own kernels are used if it has them; null on the CPU
    DeviceWeights *copies = nullptr;
    ggml_context *context() const { return out.context.get(); }

    ggml_tensor *new_input(ggml_type type, std::initializer_list<int64_t> ne, const char *label);
    // Inputs that several layers share are made once per graph.
    template <class Key, class Make>
    ggml_tensor *shared_input(std::map<Key, ggml_tensor *> &inputs, Key which, const Make &make) {
        auto [place, fresh] = inputs.try_emplace(which, nullptr);
        if (fresh) place->second = make();
        return place->second;
    }
};

class StockLowering : public Lowering {
  public:
    // `device`: null on the CPU, whose graphs make all scores: of them those of devices are checked.  `sums`: of what
    // products read, or null.  `copies`: of weights that lie elsewhere, or null.
    StockLowering(const KvStore &store, ggml_backend *device, InputSums *sums, DeviceWeights *copies = nullptr)
        : store_(store), device_(device), sums_(sums), copies_(copies) {}
    LoweredGraph lower(const Trace &trace, const GraphKey &key) const override;

  private:
    ggml_tensor *lower_operation(StockGraph &graph, const Operation &operation) const;
    static void lower_left(StockGraph &graph, const Left &left);
    const KvStore &store_;
    ggml_backend *device_;
    InputSums *sums_;
    DeviceWeights *copies_;
};

} // namespace quire
