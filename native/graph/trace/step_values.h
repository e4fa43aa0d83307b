// The values that every step brings, which traces begin with.
#pragma once

#include <memory>

#include "graph/trace/trace.h"

namespace quire {

std::shared_ptr<const OperationKind> step_tokens();
std::shared_ptr<const OperationKind> step_positions();
std::shared_ptr<const OperationKind> step_logit_rows();
std::shared_ptr<const OperationKind> step_token_types();

// Features of each row, which a step brings to traces of heads alone.
std::shared_ptr<const OperationKind> step_features();

} // namespace quire
