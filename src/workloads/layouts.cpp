// Windows, strides, pages and offsets. Everything outside the windows is poison.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "contract/key_source.hpp"
#include "workloads/builder.hpp"

namespace dosa::workloads {
namespace {

using Ints = TensorView<const std::int32_t, 1>;

/// Normal codes, mixed weights: scores that differ nearly everywhere.
void fill(Builder& builder) {
  const auto draw = [&](std::uint8_t* code, std::int64_t count) {
    for (std::int64_t d = 0; d < count; ++d) code[d] = e4m3_nearest(builder.random.normal() * 100);
  };
  draw(builder.q.data(), static_cast<std::int64_t>(builder.q.size()));
  draw(builder.k.data(), static_cast<std::int64_t>(builder.k.size()));
  for (float& weight : builder.weights) weight = static_cast<float>(builder.random.uniform(-0.05, 0.1));
  for (float& scale : builder.scale) scale = static_cast<float>(builder.random.uniform(0.005, 0.02));
}

void poison_key(Builder& builder, std::int64_t i) {
  std::memset(builder.key(i), kNaNCode, static_cast<std::size_t>(builder.size.head_dim));
  builder.scale[static_cast<std::size_t>(i)] = float_of_bits(0xffc0dead);
}

void window(Builder& builder, std::int64_t row, std::int64_t first, std::int64_t last) {
  builder.ks[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(first);
  builder.ke[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(last);
}

Workload windows_hostile(const Size& wanted) {
  Size size = wanted;
  constexpr std::int64_t low = std::numeric_limits<std::int32_t>::min(),
                         high = std::numeric_limits<std::int32_t>::max();
  const std::int64_t n = size.keys, k = size.top_k;
  const std::vector<std::pair<std::int64_t, std::int64_t>> windows = {
      {0, n},         {-5, n},          {low, high},       {0, high},    {low, 1},    {0, 0},     {0, -1},
      {n, n},         {n, high},        {n - 1, n},        {n + 7, 3},   {high, low}, {n / 2, 0}, {n / 3, n / 3},
      {1, n},         {0, 1},           {63, 65},          {64, 128},    {1, k + 1},  {0, k},     {0, k - 1},
      {0, k + 1},     {n - k, n},       {n - k - 1, high}, {-1, n / 2},  {31, 33},    {17, 4096}, {n / 2, n},
      {low, low + 1}, {high - 1, high}, {-4, -3},          {n - 1, high}};
  size.rows = std::max<std::int64_t>(size.rows, static_cast<std::int64_t>(windows.size()));
  Builder builder(size);
  fill(builder);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const auto& [first, last] = windows[static_cast<std::size_t>(t) % windows.size()];
    window(builder, t, std::clamp(first, low, high), std::clamp(last, low, high));
  }
  return builder.finish();
}

/// Lengths -4..1 as padded decode rows have them: all but the last are empty.
Workload negative_lengths(const Size& wanted) {
  Size size = wanted;
  size.rows = 6;
  Builder builder(size);
  fill(builder);
  for (std::int64_t i = 1; i < size.keys; ++i) poison_key(builder, i);
  for (std::int64_t t = 0; t < 6; ++t) window(builder, t, 0, t - 4);
  return builder.finish();
}

Workload packed_requests(const Size& size) {
  Builder builder(size);
  fill(builder);
  // The thread's split: ks = 5,000 and ke = 9,000 of 9,000 keys.
  const std::int64_t split = size.keys * 5 / 9;
  for (std::int64_t t = 0; t < size.rows; ++t) {
    if (t % 2 == 0)
      window(builder, t, split, size.keys - (t / 2) % 3);
    else
      window(builder, t, 0, std::max<std::int64_t>(split - t / 2 % 3, 0));
  }
  return builder.finish();
}

Workload windows_mid_tile(const Size& size) {
  Builder builder(size);
  fill(builder);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const std::int64_t first =
        std::min<std::int64_t>(builder.random.below(size.keys) / 64 * 64 + 1 + t % 63, size.keys);
    window(builder, t, first, std::min(size.keys, first + size.top_k + builder.random.below(200)));
  }
  return builder.finish();
}

Workload poison_outside(const Size& size) {
  Builder builder(size);
  fill(builder);
  const std::int64_t a = size.keys / 5, b = size.keys * 2 / 5, c = size.keys * 3 / 5, d = size.keys * 9 / 10;
  for (std::int64_t t = 0; t < size.rows; ++t) window(builder, t, t % 2 == 0 ? a : c, t % 2 == 0 ? b : d);
  for (std::int64_t i = 0; i < size.keys; ++i) {
    if ((i >= a && i < b) || (i >= c && i < d)) continue;
    poison_key(builder, i);
  }
  return builder.finish();
}

/// Rows in no order, some equal.
Workload row_orders(const Size& size) {
  Builder builder(size);
  fill(builder);
  const std::size_t row_codes = static_cast<std::size_t>(size.heads) * static_cast<std::size_t>(size.head_dim);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    window(builder, t, 0, builder.random.below(size.keys) + 1);
    if (t % 3 == 2) {  // equal to row 0
      std::memcpy(builder.query(t, 0), builder.query(0, 0), row_codes);
      std::copy_n(&builder.weight(0, 0), size.heads, &builder.weight(t, 0));
      window(builder, t, builder.ks[0], builder.ke[0]);
    }
  }
  return builder.finish();
}

/// Every tensor strided, the gaps poisoned.
Workload strided(const Size& size) {
  Builder builder(size);
  fill(builder);
  builder.vary_windows();
  Workload workload = builder.finish();
  Problem& problem = workload.problem;
  const auto spread = [&](const auto* data, std::int64_t rows, std::int64_t width, std::int64_t stride, auto poison) {
    using T = std::remove_cvref_t<decltype(*data)>;
    std::vector<T> out(static_cast<std::size_t>(rows * stride + 1), static_cast<T>(poison));
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(data + r * width, width, out.data() + r * stride + 1);
    return keep(workload, std::move(out)) + 1;
  };
  const std::int64_t dim = size.head_dim, heads = size.heads, rows = size.rows;
  auto& keys = std::get<ContiguousKeys>(problem.keys);
  problem.q.data = spread(problem.q.data, rows * heads, dim, dim + 5, kNaNCode);
  problem.q.strides = {heads * (dim + 5), dim + 5, 1};
  problem.weights.data = spread(problem.weights.data, rows, heads, heads + 3, float_of_bits(0x7fc00000U));
  problem.weights.strides = {heads + 3, 1};
  keys.codes.data = spread(keys.codes.data, size.keys, dim, dim + 4, kNaNCode);
  keys.codes.strides = {dim + 4, 1};
  keys.scales.data = spread(keys.scales.data, size.keys, 1, 3, float_of_bits(0x7fc00000U));
  keys.scales.strides = {3};
  problem.ks.data = spread(problem.ks.data, rows, 1, 2, std::numeric_limits<std::int32_t>::min());
  problem.ks.strides = {2};
  problem.ke.data = spread(problem.ke.data, rows, 1, 5, std::numeric_limits<std::int32_t>::max());
  problem.ke.strides = {5};
  return workload;
}

/// One row many times, through stride 0.
Workload one_row_many(const Size& wanted) {
  Size size = wanted;
  size.rows = 1;
  Builder builder(size);
  fill(builder);
  Workload workload = builder.finish();
  Problem& problem = workload.problem;
  problem.q.shape[0] = problem.weights.shape[0] = problem.ks.shape[0] = problem.ke.shape[0] = wanted.rows;
  problem.q.strides[0] = problem.weights.strides[0] = problem.ks.strides[0] = problem.ke.strides[0] = 0;
  return workload;
}

/// All heads share one query vector, all keys one code vector; only weights and scales differ.
Workload broadcast_heads(const Size& wanted) {
  Size size = wanted;
  Builder builder(size);
  fill(builder);
  builder.vary_windows();
  Workload workload = builder.finish();
  workload.problem.q.strides = {size.head_dim, 0, 1};
  std::get<ContiguousKeys>(workload.problem.keys).codes.strides[0] = 0;
  return workload;
}

/// Scales all the same number, through stride 0.
Workload broadcast_scale(const Size& size) {
  Builder builder(size);
  fill(builder);
  builder.vary_windows();
  Workload workload = builder.finish();
  std::get<ContiguousKeys>(workload.problem.keys).scales.strides[0] = 0;
  return workload;
}

/// Keys 2 MiB apart: offsets pass 2^31 from key 1,024 on.
Workload cache_beyond_2gib(const Size& wanted) {
  Size size = wanted;
  size.keys = std::clamp<std::int64_t>(size.keys, 1030, 4096);
  Builder builder(size);
  fill(builder);
  builder.vary_windows();
  Workload workload = builder.finish();
  auto& keys = std::get<ContiguousKeys>(workload.problem.keys);
  constexpr std::int64_t stride = std::int64_t{1} << 21;
  auto* memory = reinterpret_cast<std::uint8_t*>(keep_sparse(workload, static_cast<std::size_t>(size.keys * stride)));
  for (std::int64_t i = 0; i < size.keys; ++i)
    std::memcpy(memory + i * stride, keys.codes.at(i), static_cast<std::size_t>(size.head_dim));
  keys.codes.data = memory;
  keys.codes.strides = {stride, 1};
  return workload;
}

/// Pages 1,002,240 bytes apart; the one hot key lies in physical page 2,143, whose offset needs 32 bits and more.
Workload page_stride_large(const Size& wanted) {
  Size size = wanted;
  constexpr std::int32_t page = 64;
  constexpr std::int64_t stride = 1002240, pages = 2144, hot = 2143;
  size.keys = std::max<std::int64_t>((size.keys + page - 1) / page, 2) * page;
  size.keys = std::min<std::int64_t>(size.keys, pages * page);
  Builder builder(size);
  fill(builder);
  for (float& weight : builder.weights) weight = static_cast<float>(builder.random.uniform(0.01, 0.1));
  const std::int64_t hot_key = size.keys / page / 2 * page + 11;
  for (std::int64_t i = 0; i < size.keys; ++i) {
    if (i != hot_key) continue;
    builder.scale[static_cast<std::size_t>(i)] = 1e6F;
  }
  std::memset(builder.query(0, 0), kOne, static_cast<std::size_t>(size.head_dim));
  std::memset(builder.key(hot_key), kOne, static_cast<std::size_t>(size.head_dim));
  for (std::int64_t t = 1; t < size.rows; ++t)
    std::memset(builder.query(t, 0), kOne, static_cast<std::size_t>(size.head_dim));
  Workload workload = builder.finish();
  const auto keys = std::get<ContiguousKeys>(workload.problem.keys);
  auto* cache = reinterpret_cast<std::uint8_t*>(keep_sparse(workload, static_cast<std::size_t>(pages * stride)));
  const std::int64_t columns = size.keys / page;
  std::vector<std::int32_t> table(static_cast<std::size_t>(columns));
  for (std::int64_t column = 0; column < columns; ++column) {
    // The last physical pages, in descending order, so that most offsets are large; the hot key's page is the last one.
    const std::int64_t hot_column = hot_key / page;
    const std::int64_t physical = column == hot_column ? hot : hot - 1 - (column < hot_column ? column : column - 1);
    table[static_cast<std::size_t>(column)] = static_cast<std::int32_t>(physical);
    std::uint8_t* bytes = cache + physical * stride;
    std::memcpy(bytes, keys.codes.at(column * page),
                static_cast<std::size_t>(page) * static_cast<std::size_t>(size.head_dim));
    std::memcpy(bytes + page * size.head_dim, keys.scales.at(column * page), page * sizeof(float));
  }
  PagedKeys out;
  out.cache = cache;
  out.pages = pages;
  out.page_stride = stride;
  out.page_size = page;
  out.head_dim = size.head_dim;
  out.block_table = TensorView<const std::int32_t, 2>::contiguous(keep(workload, std::move(table)), {1, columns});
  workload.problem.keys = out;
  return workload;
}

Workload plain(const Size& size) {
  Builder builder(size);
  fill(builder);
  builder.vary_windows();
  return builder.finish();
}

/// Requests of different lengths over one cache. Requests share their first pages; the last page of each is partly
/// filled, poison behind the length; table entries past the length name no page of the cache. Rows are next_n a
/// request, each with a length of its own, or (named) in random order by row_request.
Workload requests(const Size& wanted, std::int32_t page, std::int64_t next_n, bool named) {
  Size size = wanted;
  const std::int64_t count = std::max<std::int64_t>((size.rows + next_n - 1) / next_n, 1);
  size.rows = count * next_n;
  Random random(size.seed * 77 + static_cast<std::uint64_t>(page * 1000 + next_n));
  const std::int64_t columns = (size.keys + page - 1) / page;
  const std::int64_t dim = size.head_dim;
  const std::int64_t used = page * (dim + 4);
  const std::int64_t stride = used + 4 * random.below(9);
  const std::int64_t shared = columns / 4;  // pages every request begins with
  const std::int64_t pages = shared + count * (columns - shared) + 3;

  Workload workload;
  workload.top_k = size.top_k;
  Size inner = size;
  inner.keys = 1;
  Builder builder(inner);
  fill(builder);
  std::vector<std::int32_t> physical(static_cast<std::size_t>(pages));
  std::iota(physical.begin(), physical.end(), 0);
  random.shuffle(physical);

  std::vector<float> cache(static_cast<std::size_t>(pages * stride / 4));
  std::memset(cache.data(), 0xff, cache.size() * sizeof(float));  // NaN as codes and as scales
  auto* bytes = reinterpret_cast<std::uint8_t*>(cache.data());
  std::vector<std::int32_t> table(static_cast<std::size_t>(count * columns), -1);
  std::vector<std::int32_t> longest(static_cast<std::size_t>(count));
  std::int64_t next = shared;
  const auto put = [&](std::int64_t where, std::int64_t token) {
    std::uint8_t* base = bytes + physical[static_cast<std::size_t>(where)] * stride;
    for (std::int64_t d = 0; d < dim; ++d) base[token * dim + d] = e4m3_nearest(random.normal() * 100);
    const auto scale = static_cast<float>(random.uniform(0.005, 0.02));
    std::memcpy(base + page * dim + token * 4, &scale, 4);
  };
  for (std::int64_t where = 0; where < shared; ++where) {
    for (std::int64_t token = 0; token < page; ++token) put(where, token);
  }
  const std::int64_t capacity = columns * page;
  for (std::int64_t r = 0; r < count; ++r) {
    // The first request is the longest; others end anywhere, also inside the shared pages.
    const std::int64_t length = r == 0 ? size.keys : random.below(capacity) + 1;
    longest[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(length);
    for (std::int64_t column = 0; column < columns; ++column) {
      auto& entry = table[static_cast<std::size_t>(r * columns + column)];
      if (column * page >= length) {
        constexpr std::int32_t invalid[] = {-1, std::numeric_limits<std::int32_t>::max(),
                                            std::numeric_limits<std::int32_t>::min()};
        entry = random.chance(0.25) ? static_cast<std::int32_t>(pages) : invalid[random.below(3)];
        continue;
      }
      const std::int64_t where = column < shared ? column : next++;
      entry = physical[static_cast<std::size_t>(where)];
      if (column < shared) continue;
      for (std::int64_t token = 0; token < page && column * page + token < length; ++token) put(where, token);
    }
  }

  std::vector<std::int32_t> row_request(static_cast<std::size_t>(size.rows));
  for (std::int64_t t = 0; t < size.rows; ++t)
    row_request[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t / next_n);
  if (named) random.shuffle(row_request);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const std::int64_t length = longest[static_cast<std::size_t>(row_request[static_cast<std::size_t>(t)])];
    // next_n speculative rows see one key more each; one row in seven begins later (a local window).
    const std::int64_t last = std::max<std::int64_t>(length - (next_n - 1 - t % next_n), t % 5 == 4 ? -2 : 0);
    window(builder, t, t % 7 == 6 ? random.below(length) : 0, last);
  }
  Workload made = builder.finish();
  workload.problem = made.problem;
  workload.owners = std::move(made.owners);
  PagedKeys keys;
  keys.cache = reinterpret_cast<const std::uint8_t*>(keep(workload, std::move(cache)));
  keys.pages = pages;
  keys.page_stride = stride;
  keys.page_size = page;
  keys.head_dim = size.head_dim;
  keys.block_table = TensorView<const std::int32_t, 2>::contiguous(keep(workload, std::move(table)), {count, columns});
  workload.problem.keys = keys;
  if (named) workload.problem.row_request = Ints::contiguous(keep(workload, std::move(row_request)), {size.rows});
  return workload;
}

template <std::int32_t Page>
Workload paged_entry(const Size& size) {
  return paged(plain(size), Page, 4 * (Page % 7), true, size.seed);
}
template <std::int64_t NextN>
Workload next_n_entry(const Size& size) {
  return requests(size, 64, NextN, false);
}

/// Scales 2^0 .. 2^15 along a page of equal codes: a reader that takes codes and scales interleaved fails at token 1.
Workload token_scales(const Size& wanted) {
  Size size = wanted;
  Builder builder(size);
  std::vector<float> values(static_cast<std::size_t>(size.keys));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.0F, static_cast<int>(i % 16));
  builder.control(values, true);
  Workload contiguous = builder.finish();
  Workload workload = paged(contiguous, 64, 0, true, size.seed);
  workload.known_scores = contiguous.known_scores;
  return workload;
}

}  // namespace

Workload paged(const Workload& contiguous, std::int32_t page_size, std::int64_t gap, bool shuffle, std::uint64_t seed) {
  const auto& keys = std::get<ContiguousKeys>(contiguous.problem.keys);
  const std::int64_t n = keys.codes.shape[0], dim = keys.codes.shape[1];
  const std::int64_t columns = (n + page_size - 1) / page_size, pages = columns + 2;
  const std::int64_t stride = page_size * (dim + 4) + gap;
  Random random(seed + 5);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  if (shuffle) random.shuffle(order);
  order.resize(static_cast<std::size_t>(columns));

  Workload workload = contiguous;
  std::vector<float> cache(static_cast<std::size_t>(pages * stride / 4));
  std::memset(cache.data(), 0xff, cache.size() * sizeof(float));
  auto* bytes = reinterpret_cast<std::uint8_t*>(cache.data());
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t* base = bytes + order[static_cast<std::size_t>(i / page_size)] * stride;
    std::memcpy(base + i % page_size * dim, keys.codes.at(i), static_cast<std::size_t>(dim));
    std::memcpy(base + page_size * dim + i % page_size * 4, keys.scales.at(i), 4);
  }
  PagedKeys out;
  out.cache = reinterpret_cast<const std::uint8_t*>(keep(workload, std::move(cache)));
  out.pages = pages;
  out.page_stride = stride;
  out.page_size = page_size;
  out.head_dim = static_cast<std::int32_t>(dim);
  out.block_table = TensorView<const std::int32_t, 2>::contiguous(keep(workload, std::move(order)), {1, columns});
  workload.problem.keys = out;
  // N grows to whole pages; windows that ran past the end must not see the poison of the last page.
  const std::int64_t rows = workload.problem.ks.shape[0];
  std::vector<std::int32_t> ke(static_cast<std::size_t>(rows));
  for (std::int64_t t = 0; t < rows; ++t) {
    ke[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(std::min<std::int64_t>(*workload.problem.ke.at(t), n));
  }
  workload.problem.ke = Ints::contiguous(keep(workload, std::move(ke)), {rows});
  return workload;
}

void append_layout_entries(std::vector<Entry>& entries) {
  const Size small{7, 2100, 4, 32, 200, 1}, full{9, 65536, 32, 128, 2048, 1};
  const auto add = [&](std::string_view name, std::string_view description, std::string_view thread, bool trace,
                       Workload (*make)(const Size&)) {
    entries.push_back({name, description, thread, Family::layout, trace, small, full, make});
  };
  add("windows_hostile", "every kind of ks and ke: negative, past the end, crossed, empty, one key, K-1, K, K+1",
      "sglang#30378", true, windows_hostile);
  add("negative_lengths", "lengths -4 to 1, poison behind the first key", "sglang#30378, sglang#31123", true,
      negative_lengths);
  add("packed_requests", "two requests packed along one key axis (ks = 5,000, ke = 9,000)", "vllm#56749", true,
      packed_requests);
  add("windows_mid_tile", "windows that begin and end inside tiles and pages", "", true, windows_mid_tile);
  add("poison_outside", "NaN codes and scales outside the windows", "vllm#57156", true, poison_outside);
  add("row_orders", "rows in no order, some equal", "vllm#57815", true, row_orders);
  add("strided", "every tensor strided, poison in the gaps", "vllm#40987", false, strided);
  add("one_row_many", "one row many times through stride 0", "", false, one_row_many);
  entries.back().full = {10000, 3000, 4, 32, 512, 1};
  add("broadcast_heads", "one query vector for all heads, one code vector for all keys, through stride 0", "", false,
      broadcast_heads);
  add("broadcast_scale", "one scale for all keys, through stride 0", "", false, broadcast_scale);
  add("cache_beyond_2gib", "keys 2 MiB apart: offsets beyond 2^31", "vllm#30754", false, cache_beyond_2gib);
  add("page_stride_large", "pages 1,002,240 bytes apart, the hot key in page 2,143", "vllm#52109", false,
      page_stride_large);
  entries.back().full.keys = 2144 * 64;
  add("paged_1", "pages of 1 token", "vllm#53635", false, paged_entry<1>);
  add("paged_2", "pages of 2 tokens", "vllm#53635", false, paged_entry<2>);
  add("paged_4", "pages of 4 tokens", "", false, paged_entry<4>);
  add("paged_8", "pages of 8 tokens", "", false, paged_entry<8>);
  add("paged_16", "pages of 16 tokens", "vllm#53635", false, paged_entry<16>);
  add("paged_32", "pages of 32 tokens", "vllm#53635", false, paged_entry<32>);
  add("paged_64", "pages of 64 tokens, shuffled", "DeepGEMM, SGLang and vLLM's layout", false, paged_entry<64>);
  add("paged_128", "pages of 128 tokens", "vllm#53635", false, paged_entry<128>);
  add("paged_256", "pages of 256 tokens", "vllm#53635", false, paged_entry<256>);
  add("token_scales", "scales 2^0 to 2^15 along a page of equal codes", "vllm#50576", false, token_scales);
  add("shared_pages",
      "requests share pages; partly filled last pages; invalid table entries past the length; rows name their request "
      "in any order",
      "sglang#20531, flashinfer#2486", false, [](const Size& size) { return requests(size, 64, 1, true); });
  add("shared_pages_16", "the same with pages of 16 tokens", "", false,
      [](const Size& size) { return requests(size, 16, 2, true); });
  add("next_n_1", "one row a request, each with a length of its own", "vllm#43457", false, next_n_entry<1>);
  add("next_n_2", "two rows a request", "vllm#43457", false, next_n_entry<2>);
  add("next_n_3", "three rows a request", "vllm#43457, DeepGEMM#340", false, next_n_entry<3>);
  add("next_n_4", "four rows a request", "DeepGEMM#314", false, next_n_entry<4>);
  add("next_n_5", "five rows a request", "DeepGEMM#324", false, next_n_entry<5>);
  add("next_n_6", "six rows a request", "DeepGEMM#324", false, next_n_entry<6>);
  add("next_n_7", "seven rows a request", "DeepGEMM#324", false, next_n_entry<7>);
  add("next_n_8", "eight rows a request", "DeepGEMM#324", false, next_n_entry<8>);
}

}  // namespace dosa::workloads
