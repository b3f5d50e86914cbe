// What every kernel of a call is told. Plain data: it is captured in a CUDA graph as it stands, and everything that may
// change from replay to replay (windows, tables, values) is read through its pointers.
#pragma once

#include <cstdint>

#include "contract/total_order.hpp"
#include "dosa/cuda.hpp"
#include "dosa/problem.hpp"
#include "dosa/types.hpp"

namespace dosa::cuda {

enum class Mode : std::int32_t {
  fused,       ///< one unit owns its rows over all their keys: threshold, stream, selection, output
  sample,      ///< scores a sample of each row's keys (rows split over the chip)
  stream,      ///< candidates of one chunk of keys
  repeat,      ///< stream again, rows whose predicted threshold was too high, without a threshold
  all_scores,  ///< writes the score of every visible key
};

enum class Loader : std::int32_t {
  tma,    ///< the tensor copy engine
  plain,  ///< ordinary copies: views that a tensor map cannot describe
};

struct Params {
  // Rows.
  const std::uint8_t* q;
  std::int64_t q_row, q_head;  ///< strides in bytes
  bool q_aligned;              ///< every head of every row starts at a multiple of 16 bytes
  const float* weights;
  std::int64_t weight_row;
  const std::int32_t *ks, *ke, *row_request;
  std::int64_t ks_stride, ke_stride, row_request_stride;
  std::int32_t rows, heads, head_dim;
  std::int32_t rows_per_request, requests;
  // Keys.
  bool is_paged;
  ContiguousKeys contiguous;
  PagedKeys paged;
  std::int32_t keys;                   ///< of the view
  std::int64_t first_key, total_keys;  ///< the shard
  std::int64_t always_first, always_last;
  Loader loader;
  bool scales_together;         ///< contiguous scales start at a multiple of 16 bytes and have stride 1
  std::int32_t page_shift;      ///< page_size = 2^page_shift
  std::int32_t box_rows;        ///< keys of one tensor map box
  std::int32_t code_alignment;  ///< 16, 4 or 1: what every key's codes are aligned to (plain loader)
  // Output.
  std::int32_t top_k;
  Order order;
  IndexBase base;
  std::int32_t* indices;
  std::int64_t indices_row, indices_slot;
  std::int32_t* lengths;
  std::int64_t lengths_stride;
  float* scores;  ///< [rows, top_k] or null
  std::int64_t scores_row, scores_slot;
  float* matrix;  ///< [rows, keys], else null
  std::int64_t matrix_row, matrix_key;
  // Work.
  Mode mode;
  std::int32_t blocks;       ///< blocks of rows
  std::int32_t chunks;       ///< pieces of each block's keys
  std::int32_t sample_keys;  ///< at most so many keys are scored to predict a threshold; 0: none
  // Workspace.
  Entry* buffers;  ///< fused: [gridDim.x, rows of a block, capacity]; else [rows, chunks, capacity]
  std::int32_t capacity;
  std::int64_t row_stride;  ///< entries from a row's buffer to the next row's: chunks * capacity
  std::uint32_t* counts;    ///< [rows, chunks], not fused
  std::uint32_t* ranks;     ///< [rows], not fused: which of a sample's scores becomes the threshold; 0: none
  float* thresholds;        ///< [rows], not fused; null: -inf for all
  std::uint32_t* repeats;   ///< [rows], not fused: the row's threshold was too high
  DeviceCounters* counters;
};

}  // namespace dosa::cuda
