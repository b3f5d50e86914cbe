// The command `dosa`.
#pragma once

namespace dosa::app {

/// What main does: returns the exit code; never throws.
[[nodiscard]] int run(int argc, char** argv);

}  // namespace dosa::app
