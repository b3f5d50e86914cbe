// plan(): pure, and every refusal says what was found and what was wanted.
#include "dosa/plan.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "cpu/dispatch.hpp"
#include "support/errors.hpp"
#include "support/oracle.hpp"

namespace dosa::test {
namespace {

Shape good_shape() {
  Shape shape;
  shape.rows = 4;
  shape.heads = 8;
  shape.head_dim = 64;
  shape.keys = 1000;
  return shape;
}

Shape paged_shape() {
  Shape shape = good_shape();
  shape.paged = true;
  shape.requests = 2;
  shape.pages = 40;
  shape.page_size = 64;
  shape.keys = 1024;
  return shape;
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                       kLeast = std::numeric_limits<std::int64_t>::min();

void refuse_shape(Shape shape, const std::vector<std::string>& words) {
  for (const Backend backend : {Backend::reference, Backend::cpu, Backend::automatic})
    expect_error(ErrorKind::bad_input, words, [&] { static_cast<void>(plan(shape, top(5, backend))); });
}

TEST(Plan, RefusesShapesOutOfRange) {
  const auto with = [](auto change) {
    Shape shape = good_shape();
    change(shape);
    return shape;
  };
  refuse_shape(with([](Shape& s) { s.rows = -1; }), {"-1"});
  refuse_shape(with([](Shape& s) { s.heads = 0; }), {"found 0", "1..128"});
  refuse_shape(with([](Shape& s) { s.heads = 129; }), {"found 129", "1..128"});
  refuse_shape(with([](Shape& s) { s.heads = kLeast; }), {"1..128"});
  for (const std::int64_t dim :
       {std::int64_t{0}, std::int64_t{16}, std::int64_t{48}, std::int64_t{288}, kMost, std::int64_t{-32}})
    refuse_shape(with([&](Shape& s) { s.head_dim = dim; }), {std::to_string(dim), "multiple of 32"});
  refuse_shape(with([](Shape& s) { s.keys = -1; }), {"-1"});
  refuse_shape(with([](Shape& s) { s.keys = std::int64_t{1} << 31; }), {"2147483648"});
  refuse_shape(with([](Shape& s) { s.keys = kMost; }), {std::to_string(kMost)});
}

TEST(Plan, RefusesPagesOutOfRange) {
  const auto with = [](auto change) {
    Shape shape = paged_shape();
    change(shape);
    return shape;
  };
  for (const std::int32_t page : {0, -64, 3, 65, 512, std::numeric_limits<std::int32_t>::min()})
    refuse_shape(with([&](Shape& s) { s.page_size = page; }), {"page size " + std::to_string(page), "power of two"});
  refuse_shape(with([](Shape& s) { s.pages = -1; }), {"-1"});
  refuse_shape(with([](Shape& s) { s.requests = -2; }), {"-2"});
  refuse_shape(with([](Shape& s) { s.requests = 3; }), {"4 rows", "3 requests"});
  refuse_shape(with([](Shape& s) { s.requests = 0; }), {"4 rows", "0 requests"});
}

TEST(Plan, RefusesOptionsOutOfRange) {
  const auto refuse = [](auto change, const std::vector<std::string>& words) {
    for (const Backend backend : {Backend::reference, Backend::cpu}) {
      Options options = top(5, backend);
      change(options);
      expect_error(ErrorKind::usage, words, [&] { static_cast<void>(plan(good_shape(), options)); });
    }
  };
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{-1024}, kLeast})
    refuse([&](Options& o) { o.top_k = k; }, {"top_k", std::to_string(k)});
  refuse([](Options& o) { o.always_first = -1; }, {"always_first", "-1"});
  refuse([](Options& o) { o.always_last = -7; }, {"always_last", "-7"});
  refuse([](Options& o) { o.threads = -1; }, {"threads", "-1"});
  refuse([](Options& o) { o.retained_heads = -1; }, {"-1"});
  refuse([](Options& o) { o.retained_heads = 9; }, {"found 9", "8"});
  refuse([](Options& o) { o.index_base = IndexBase::slot; }, {"slot", "paged"});
}

TEST(Plan, TopKWithoutAValueIsRefused) {
  expect_error(ErrorKind::usage, {"top_k"}, [] { static_cast<void>(plan(good_shape(), Options{})); });
}

TEST(Plan, RefusesShardsOutsideTheSequence) {
  const auto refuse = [](Shard shard) {
    Options options = top(5);
    options.shard = shard;
    expect_error(ErrorKind::bad_input, {"shard"}, [&] { static_cast<void>(plan(good_shape(), options)); });
  };
  refuse({0, 999});
  refuse({-1, 5000});
  refuse({1, 1000});
  refuse({kMost, 5000});
  refuse({kMost - 500, kMost});
  refuse({0, std::int64_t{1} << 31});
  Options options = top(5);
  options.shard = Shard{4000, 5000};
  EXPECT_NO_THROW(static_cast<void>(plan(good_shape(), options)));
}

TEST(Plan, SlotsMustFitAnIndex) {
  Options options = top(5);
  options.index_base = IndexBase::slot;
  Shape shape = paged_shape();
  shape.pages = (std::int64_t{1} << 31) / 64;
  expect_error(ErrorKind::bad_input, {"2^31"}, [&] { static_cast<void>(plan(shape, options)); });
  shape.pages = kMost;
  expect_error(ErrorKind::bad_input, {"2^31"}, [&] { static_cast<void>(plan(shape, options)); });
  options.index_base = IndexBase::absolute;
  shape.pages = (std::int64_t{1} << 31) / 64;
  EXPECT_NO_THROW(static_cast<void>(plan(shape, options)))
      << "more slots than an index holds matter to the base slot alone";
}

TEST(Plan, AbsentBackendsAndDevicesAreNotReplaced) {
  expect_error(ErrorKind::not_available, {"cuda"},
               [] { static_cast<void>(plan(good_shape(), top(5, Backend::cuda))); });
  Shape shape = good_shape();
  shape.device = {DeviceKind::cuda, 0};
  for (const Backend backend : {Backend::automatic, Backend::cpu, Backend::reference})
    expect_error(ErrorKind::not_available, {"device"}, [&] { static_cast<void>(plan(shape, top(5, backend))); });
}

TEST(Plan, AbsentInstructionSetsAreNotReplaced) {
  for (const IsaInfo& isa : cpu::available_isas()) {
    Options options = top(5, Backend::cpu);
    options.isa = isa.isa;
    if (isa.available) {
      EXPECT_EQ(plan(good_shape(), options).options().isa, isa.isa);
    } else {
      EXPECT_FALSE(isa.why.empty());
      expect_error(ErrorKind::not_available, {std::string(name(isa.isa))},
                   [&] { static_cast<void>(plan(good_shape(), options)); });
    }
  }
}

TEST(Plan, DecidesEverythingAndSaysWhy) {
  for (const Backend backend : {Backend::automatic, Backend::cpu, Backend::reference}) {
    const Plan decided = plan(good_shape(), top(5, backend));
    EXPECT_NE(decided.options().backend, Backend::automatic);
    EXPECT_NE(decided.options().isa, Isa::automatic);
    EXPECT_GT(decided.options().threads, 0);
    EXPECT_FALSE(decided.why().empty());
    EXPECT_EQ(decided.shape(), good_shape());
  }
  EXPECT_EQ(plan(good_shape(), top(5, Backend::automatic)).options().backend, Backend::cpu);
}

TEST(Plan, IsPure) {
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    const Plan a = plan(good_shape(), top(5, backend)), b = plan(good_shape(), top(5, backend));
    EXPECT_EQ(a.workspace_bytes(), b.workspace_bytes());
    EXPECT_EQ(a.carry_bytes(), b.carry_bytes());
    EXPECT_EQ(a.why(), b.why());
  }
}

TEST(Plan, MemoryStaysWithinTheBudget) {
  // 64 MiB plus 32 bytes a key plus (4 KiB + 32 K bytes) a query in flight.
  for (const std::int64_t keys : {std::int64_t{0}, std::int64_t{1}, std::int64_t{65536}, std::int64_t{1} << 20}) {
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{64}, std::int64_t{16384}}) {
      for (const std::int64_t top_k : {std::int64_t{1}, std::int64_t{2048}}) {
        Shape shape = good_shape();
        shape.keys = keys;
        shape.rows = rows;
        shape.heads = 64;
        shape.head_dim = 128;
        const Plan decided = plan(shape, top(top_k, Backend::cpu));
        const double budget = 64.0 * 1024 * 1024 + 32.0 * static_cast<double>(keys) +
                              static_cast<double>(rows) * (4096 + 32.0 * static_cast<double>(top_k));
        EXPECT_LE(static_cast<double>(decided.workspace_bytes()), budget)
            << keys << " keys " << rows << " rows K " << top_k;
      }
    }
  }
}

TEST(Plan, HugeTopKNeedsNoHugeWorkspace) {
  // K beyond the window is not an error, and memory follows the keys, not K.
  Shape shape = good_shape();
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    const Plan decided = plan(shape, top((std::int64_t{1} << 31) - 1, backend));
    EXPECT_LE(decided.workspace_bytes(), std::size_t{256} << 20) << name(backend);
  }
}

template <class E>
void round_trips(std::initializer_list<E> values, E (*parse)(std::string_view)) {
  for (const E value : values) EXPECT_EQ(parse(name(value)), value) << name(value);
  expect_error(ErrorKind::usage, {"nonsense", std::string(name(*values.begin()))},
               [&] { static_cast<void>(parse("nonsense")); });
  expect_error(ErrorKind::usage, {"''"}, [&] { static_cast<void>(parse("")); });
}

TEST(Names, RoundTripAndListTheWords) {
  round_trips({ScoreModel::f64, ScoreModel::sm90}, parse_score_model);
  round_trips({Backend::automatic, Backend::reference, Backend::cpu, Backend::cuda}, parse_backend);
  round_trips({Path::automatic, Path::dense, Path::dosa}, parse_path);
  round_trips({Isa::automatic, Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}, parse_isa);
  round_trips({Order::index, Order::score}, parse_order);
  round_trips({IndexBase::absolute, IndexBase::window, IndexBase::slot}, parse_index_base);
}

TEST(Info, ListsBackendsAndInstructionSets) {
  const Info found = info();
  EXPECT_FALSE(found.version.empty());
  EXPECT_FALSE(found.processor.empty());
  EXPECT_GE(found.threads, 1);
  EXPECT_NE(found.chosen, Isa::automatic);
  bool portable = false, cuda = false;
  for (const IsaInfo& isa : found.isas) {
    portable = portable || (isa.isa == Isa::portable && isa.available);
    EXPECT_FALSE(isa.why.empty());
  }
  for (const BackendInfo& backend : found.backends) cuda = cuda || backend.backend == Backend::cuda;
  EXPECT_TRUE(portable);
  EXPECT_TRUE(cuda);
}

}  // namespace
}  // namespace dosa::test
