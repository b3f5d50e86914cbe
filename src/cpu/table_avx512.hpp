// What the kernel tables over AVX-512 have in common. Unnamed namespace: see panel_kernels.hpp.
#pragma once

#include "cpu/kernels.hpp"
#include "cpu/model_scores.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/row_loops_avx512.hpp"
#include "cpu/threshold_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// Panels, forms and bounds of `Table`, keys packed by `Packer`; costs and tile_rows are the defaults.
template <class Table, class Packer>
constexpr Kernels table_512(Isa isa, decltype(Kernels::arithmetic) arithmetic, decltype(Kernels::screen) screen) {
  return {isa,
          Table::keys,
          arithmetic,
          Table::panel_bytes,
          Table::form_bytes,
          Table::make_panel,
          pack_panel<Packer>,
          Table::make_form,
          Table::upper,
          Table::bounds,
          screen,
          Table::dots,
          avx512::model_bytes,
          avx512::model_row,
          avx512::model_scores,
          count_not_below_512,
          positions_between_512,
          values_between_512,
          keep_not_below_512,
          kRowLoops512};
}

}  // namespace
}  // namespace dosa::cpu
