// Which instruction set this machine runs.
#pragma once

#include <string>

#include "kernels.h"

namespace kvasir {

// The best table that is built and runs here; ``wanted`` (empty: no wish) asks for one by name.
// Throws std::invalid_argument when the wish cannot be met.
const KernelTable* choose_kernels(const std::string& wanted);

}  // namespace kvasir
