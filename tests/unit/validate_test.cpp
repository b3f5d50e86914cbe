// run() refuses what breaks the contract before it writes anything, and says what was found and what was wanted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "dosa/plan.hpp"
#include "support/errors.hpp"
#include "support/oracle.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

/// A call that would succeed, whose parts a test breaks one at a time.
struct Call {
  workloads::Workload workload;
  Problem problem;
  Options options = top(7);
  std::vector<std::int32_t> indices, lengths;
  std::vector<float> scores;
  Selection selection;
  std::vector<std::byte> workspace, carry;

  explicit Call(const char* name, Backend backend)
      : workload(workloads::make(workloads::find(name), {4, 300, 4, 32, 7, 9})), problem(workload.problem) {
    options.backend = backend;
    options.scores = true;
    const auto rows = problem.q.shape[0];
    indices.assign(static_cast<std::size_t>(rows * 7), 77);
    lengths.assign(static_cast<std::size_t>(rows), 77);
    scores.assign(indices.size(), 77.0F);
    selection.indices = TensorView<std::int32_t, 2>::contiguous(indices.data(), {rows, 7});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {rows});
    selection.scores = TensorView<float, 2>::contiguous(scores.data(), {rows, 7});
    workspace.resize(plan(shape_of(problem), options).workspace_bytes());
  }

  void run_now() {
    const Plan decided = plan(shape_of(workload.problem), options);
    run(decided, problem, selection, workspace, carry, nullptr);
  }
  [[nodiscard]] bool untouched() const {
    return std::all_of(indices.begin(), indices.end(), [](auto v) { return v == 77; }) &&
           std::all_of(lengths.begin(), lengths.end(), [](auto v) { return v == 77; }) &&
           std::all_of(scores.begin(), scores.end(), [](auto v) { return v == 77.0F; });
  }
};

void refuse(const char* workload, const std::vector<std::string>& words, const std::function<void(Call&)>& breakage) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Call call(workload, backend);
    breakage(call);
    expect_error(ErrorKind::bad_input, words, [&] { call.run_now(); });
    EXPECT_TRUE(call.untouched()) << words.front() << ": outputs were written before the error";
  }
}

PagedKeys& pages(Call& call) { return std::get<PagedKeys>(call.problem.keys); }
ContiguousKeys& keys(Call& call) { return std::get<ContiguousKeys>(call.problem.keys); }

TEST(Validate, TheUnbrokenCallsSucceed) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    for (const char* name : {"narrow_band", "shared_pages", "next_n_2"}) {
      Call call(name, backend);
      EXPECT_NO_THROW(call.run_now()) << name;
      EXPECT_FALSE(call.untouched());
    }
  }
}

TEST(Validate, ShapesThatDisagree) {
  refuse("narrow_band", {"weights", "[3, 4]", "[4, 4]"}, [](Call& c) { c.problem.weights.shape[0] = 3; });
  refuse("narrow_band", {"weights", "[4, 5]"}, [](Call& c) { c.problem.weights.shape[1] = 5; });
  refuse("narrow_band", {"ks"}, [](Call& c) { c.problem.ks.shape[0] = 5; });
  refuse("narrow_band", {"ke"}, [](Call& c) { c.problem.ke.shape[0] = 3; });
  refuse("narrow_band", {"k_scale", "299", "300"}, [](Call& c) { keys(c).scales.shape[0] = 299; });
  refuse("narrow_band", {"299"}, [](Call& c) { keys(c).codes.shape[0] = 299; });
  refuse("narrow_band", {"head dimension", "64", "32"}, [](Call& c) { keys(c).codes.shape[1] = 64; });
  refuse("narrow_band", {"3 rows", "4 rows"}, [](Call& c) { c.problem.q.shape[0] = 3; });
  refuse("narrow_band", {"5 heads", "4 heads"}, [](Call& c) { c.problem.q.shape[1] = 5; });
}

TEST(Validate, MissingTensors) {
  refuse("narrow_band", {"q"}, [](Call& c) { c.problem.q.data = nullptr; });
  refuse("narrow_band", {"weights"}, [](Call& c) { c.problem.weights.data = nullptr; });
  refuse("narrow_band", {"ks"}, [](Call& c) { c.problem.ks.data = nullptr; });
  refuse("narrow_band", {"ke"}, [](Call& c) { c.problem.ke.data = nullptr; });
  refuse("narrow_band", {"k"}, [](Call& c) { keys(c).codes.data = nullptr; });
  refuse("narrow_band", {"k_scale"}, [](Call& c) { keys(c).scales.data = nullptr; });
  refuse("narrow_band", {"indices"}, [](Call& c) { c.selection.indices.data = nullptr; });
  refuse("narrow_band", {"lengths"}, [](Call& c) { c.selection.lengths.data = nullptr; });
  refuse("narrow_band", {"scores"}, [](Call& c) { c.selection.scores = {}; });
  refuse("shared_pages", {"null"}, [](Call& c) { pages(c).cache = nullptr; });
  refuse("shared_pages", {"block_table"}, [](Call& c) { pages(c).block_table.data = nullptr; });
}

TEST(Validate, LastAxesMustBeContiguousAndFloatsAligned) {
  refuse("narrow_band", {"q", "stride 2"}, [](Call& c) { c.problem.q.strides[2] = 2; });
  refuse("narrow_band", {"weights", "stride 0"}, [](Call& c) { c.problem.weights.strides[1] = 0; });
  refuse("narrow_band", {"k", "stride 7"}, [](Call& c) { keys(c).codes.strides[1] = 7; });
  const auto off_by_one = [](auto& view) {
    using T = std::remove_reference_t<decltype(*view.data)>;
    view.data = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(view.data) + 1);
  };
  refuse("narrow_band", {"weights", "multiple of 4"}, [&](Call& c) { off_by_one(c.problem.weights); });
  refuse("narrow_band", {"k_scale", "multiple of 4"}, [&](Call& c) { off_by_one(keys(c).scales); });
  refuse("narrow_band", {"ks", "multiple of 4"}, [&](Call& c) { off_by_one(c.problem.ks); });
  refuse("narrow_band", {"indices", "multiple of 4"}, [&](Call& c) { off_by_one(c.selection.indices); });
  refuse("shared_pages", {"multiple of 4"}, [](Call& c) { ++pages(c).cache; });
}

TEST(Validate, Outputs) {
  refuse("narrow_band", {"indices", "[4, 6]", "[4, 7]"}, [](Call& c) { c.selection.indices.shape[1] = 6; });
  refuse("narrow_band", {"lengths", "[3]", "[4]"}, [](Call& c) { c.selection.lengths.shape[0] = 3; });
  refuse("narrow_band", {"scores", "[4, 8]", "[4, 7]"}, [](Call& c) { c.selection.scores.shape[1] = 8; });
  refuse("narrow_band", {"scores"}, [](Call& c) { c.options.scores = false; });
}

TEST(Validate, Workspace) {
  refuse("narrow_band", {"workspace"}, [](Call& c) { c.workspace.resize(c.workspace.size() - 1); });
  refuse("narrow_band", {"workspace", "0 bytes"}, [](Call& c) { c.workspace.clear(); });
}

TEST(Validate, Carry) {
  Call call("narrow_band", Backend::cpu);
  const std::size_t wanted = plan(shape_of(call.problem), call.options).carry_bytes();
  if (wanted == 0) GTEST_SKIP() << "this plan carries nothing between calls";
  call.carry.resize(wanted - 1);
  expect_error(ErrorKind::bad_input, {"carry", std::to_string(wanted)}, [&] { call.run_now(); });
  EXPECT_TRUE(call.untouched());
  call.carry.resize(wanted);
  EXPECT_NO_THROW(call.run_now());
}

TEST(Validate, RowReports) {
  Call call("narrow_band", Backend::reference);
  Stats stats;
  stats.row_reports.resize(3);
  const Plan decided = plan(shape_of(call.problem), call.options);
  expect_error(ErrorKind::bad_input, {"row_reports", "3", "4"},
               [&] { run(decided, call.problem, call.selection, call.workspace, {}, &stats); });
  EXPECT_TRUE(call.untouched());
}

TEST(Validate, PageStride) {
  refuse("shared_pages", {"page stride", "2303", "2304"}, [](Call& c) { pages(c).page_stride = 64 * 36 - 1; });
  refuse("shared_pages", {"page stride", "multiple of 4"}, [](Call& c) { pages(c).page_stride += 2; });
  refuse("shared_pages", {"page stride", "0 bytes"}, [](Call& c) { pages(c).page_stride = 0; });
  refuse("shared_pages", {"page stride"},
         [](Call& c) { pages(c).page_stride = std::numeric_limits<std::int64_t>::min(); });
}

TEST(Validate, RowRequest) {
  const auto with = [](std::int32_t request) {
    return [request](Call& c) {
      static std::vector<std::int32_t> requests;
      requests.assign(4, 0);
      requests[2] = request;
      c.problem.row_request.data = requests.data();
    };
  };
  refuse("shared_pages", {"row_request", "row 2", "found request -1"}, with(-1));
  refuse("shared_pages", {"row_request", "row 2", "found request 4"}, with(4));
  refuse("shared_pages", {"row_request"}, with(std::numeric_limits<std::int32_t>::max()));
  refuse("shared_pages", {"row_request"}, [](Call& c) { c.problem.row_request.shape[0] = 3; });
  refuse("narrow_band", {"row_request", "contiguous"}, [](Call& c) { c.problem.row_request = c.problem.ks; });
}

/// The block table as a copy that a test may change; `change` gets the columns of request 0.
void with_table(Call& call, const std::function<void(std::vector<std::int32_t>&, std::int64_t)>& change) {
  auto& table = pages(call).block_table;
  static std::vector<std::int32_t> entries;
  entries.assign(table.data, table.data + table.shape[0] * table.shape[1]);
  change(entries, table.shape[1]);
  table.data = entries.data();
}

TEST(Validate, VisiblePagesOutsideTheCacheAreErrors) {
  for (const std::int32_t page :
       {-1, 1000000, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    refuse("paged_16", {"block_table", "column 3", "found page " + std::to_string(page)},
           [&](Call& c) { with_table(c, [&](auto& entries, std::int64_t) { entries[3] = page; }); });
  }
  refuse("paged_16", {"block_table", "column 0"}, [&](Call& c) {
    with_table(c, [&](auto& entries, std::int64_t) { entries[0] = static_cast<std::int32_t>(pages(c).pages); });
  });
}

/// Rows mostly see overlapping pages; each row's own pages must be checked all the same, in whatever order rows come.
TEST(Validate, EveryRowsPagesAreChecked) {
  // Windows of four rows in units of pages, and the column that only the last of them sees.
  struct Case {
    std::vector<std::int32_t> ks, ke;
    std::size_t column;
  };
  const std::vector<Case> cases = {{{0, 0, 0, 0}, {1, 2, 3, 4}, 3},   {{4, 3, 2, 1}, {6, 6, 6, 6}, 1},
                                   {{5, 5, 5, 0}, {6, 6, 6, 1}, 0},   {{0, 5, 0, 7}, {2, 6, 2, 8}, 7},
                                   {{0, 8, 1, 2}, {4, 9, 5, 8}, 6},   {{3, 3, 3, 2}, {3, 4, 5, 3}, 2},
                                   {{0, 10, 0, 0}, {3, 10, 3, 4}, 3}, {{9, 0, 4, 12}, {10, 1, 5, 13}, 12}};
  for (const Case& windows : cases) {
    refuse("paged_16", {"block_table", "column " + std::to_string(windows.column)}, [&](Call& c) {
      static std::vector<std::int32_t> ks, ke;
      ks = windows.ks;
      ke = windows.ke;
      for (std::int32_t& page : ks) page = 16 * page + 7 * (page % 2);
      for (std::int32_t& page : ke) page = 16 * page - 5 * (page % 2);
      c.problem.ks.data = ks.data();
      c.problem.ke.data = ke.data();
      with_table(c, [&](auto& entries, std::int64_t) { entries[windows.column] = -1; });
    });
  }
}

TEST(Validate, PagesNobodySeesMayBeAnything) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Call call("paged_16", backend);
    std::vector<std::int32_t> ks{40, 33, 47, 32}, ke{96, 65, 48, 33};  // pages 2..5
    call.problem.ks.data = ks.data();
    call.problem.ke.data = ke.data();
    const Result wanted = expected(call.problem, call.options);
    with_table(call, [](auto& entries, std::int64_t columns) {
      for (std::int64_t column = 0; column < columns; ++column)
        if (column < 2 || column > 5) entries[static_cast<std::size_t>(column)] = column % 2 == 0 ? -1 : 1 << 30;
    });
    call.run_now();
    const Result found{4, 7, call.indices, call.lengths, call.scores};
    EXPECT_EQ(difference(wanted, found), std::nullopt) << name(backend);
  }
}

TEST(Validate, EmptyRowsReadNoPage) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Call call("paged_16", backend);
    std::vector<std::int32_t> ks{0, 5, 300, -3}, ke{0, 5, 200, -1};
    call.problem.ks.data = ks.data();
    call.problem.ke.data = ke.data();
    with_table(call, [](auto& entries, std::int64_t) { std::fill(entries.begin(), entries.end(), -1); });
    call.run_now();
    EXPECT_TRUE(std::all_of(call.lengths.begin(), call.lengths.end(), [](auto v) { return v == 0; }));
    EXPECT_TRUE(std::all_of(call.indices.begin(), call.indices.end(), [](auto v) { return v == -1; }));
  }
}

TEST(Validate, ScoresOutput) {
  Call call("narrow_band", Backend::reference);
  std::vector<float> out(4 * 300, 77.0F);
  auto view = TensorView<float, 2>::contiguous(out.data(), {4, 299});
  expect_error(ErrorKind::bad_input, {"[4, 299]", "[4, 300]"}, [&] { scores(call.problem, call.options, view); });
  view = TensorView<float, 2>::contiguous(nullptr, {4, 300});
  expect_error(ErrorKind::bad_input, {"without data"}, [&] { scores(call.problem, call.options, view); });
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float v) { return v == 77.0F; }));
}

}  // namespace
}  // namespace dosa::test
