#include "cpu/dispatch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace dosa::cpu {
namespace {

class Environment {  // DOSA_ISA for the length of a test
 public:
  explicit Environment(const char* value) {
    const char* before = std::getenv("DOSA_ISA");
    had_ = before != nullptr;
    if (had_) before_ = before;
    if (value != nullptr) {
      setenv("DOSA_ISA", value, 1);
    } else {
      unsetenv("DOSA_ISA");
    }
  }
  ~Environment() {
    if (had_) {
      setenv("DOSA_ISA", before_.c_str(), 1);
    } else {
      unsetenv("DOSA_ISA");
    }
  }

 private:
  bool had_ = false;
  std::string before_;
};

TEST(Dispatch, EveryInstructionSetIsListedOnceBestFirst) {
  const auto isas = available_isas();
  const auto wanted = best_first(processor_name());
  ASSERT_EQ(isas.size(), wanted.size());
  for (std::size_t i = 0; i < isas.size(); ++i) EXPECT_EQ(isas[i].isa, wanted[i]);
  EXPECT_TRUE(isas.back().available);
  for (const IsaInfo& isa : isas) EXPECT_FALSE(isa.why.empty());
}

TEST(Dispatch, OnIntelF32ProductsComeBeforeBf16Pairs) {
  using Order = std::vector<Isa>;
  const auto order = [](std::string_view processor) {
    const auto isas = best_first(processor);
    return Order(isas.begin(), isas.end());
  };
  EXPECT_EQ(order("Intel(R) Xeon(R) Processor"),
            (Order{Isa::amx, Isa::avx512, Isa::avx512bf16, Isa::avx2, Isa::portable}));
  EXPECT_EQ(order("AMD EPYC 9555"), (Order{Isa::amx, Isa::avx512bf16, Isa::avx512, Isa::avx2, Isa::portable}));
  EXPECT_EQ(order(""), order("AMD EPYC 9555"));
}

TEST(Dispatch, WhatIsAskedForIsGivenOrRefusedWithTheReason) {
  const Environment none(nullptr);
  for (const IsaInfo& isa : available_isas()) {
    if (isa.available) {
      const Choice choice = choose(isa.isa);
      ASSERT_NE(choice.kernels, nullptr);
      EXPECT_EQ(choice.kernels->isa, isa.isa);
      EXPECT_NE(choice.why.find(name(isa.isa)), std::string::npos);
    } else {
      try {
        static_cast<void>(choose(isa.isa));
        FAIL() << name(isa.isa);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::not_available);
        const std::string said = error.what();
        EXPECT_TRUE(said.starts_with("found " + std::string(name(isa.isa)) + ", wanted")) << said;
        EXPECT_TRUE(said.ends_with(": " + isa.why)) << said;
      }
    }
  }
}

TEST(Dispatch, AutomaticTakesTheBestAndSaysWhatItPassed) {
  const Environment none(nullptr);
  const Choice choice = choose(Isa::automatic);
  for (const IsaInfo& isa : available_isas()) {
    if (isa.available) {
      EXPECT_EQ(choice.kernels->isa, isa.isa);
      break;
    }
    EXPECT_NE(choice.why.find("not " + std::string(name(isa.isa)) + ": " + isa.why), std::string::npos);
  }
}

TEST(Dispatch, TheEnvironmentDecidesOnlyWhereNothingIsAskedFor) {
  const Environment portable("portable");
  EXPECT_EQ(choose(Isa::automatic).kernels->isa, Isa::portable);
  EXPECT_NE(choose(Isa::automatic).why.find("DOSA_ISA"), std::string::npos);
  for (const IsaInfo& isa : available_isas()) {
    if (isa.available) {
      EXPECT_EQ(choose(isa.isa).kernels->isa, isa.isa);
    }
  }
}

TEST(Dispatch, TheEnvironmentNeverFallsBack) {
  for (const IsaInfo& isa : available_isas()) {
    const Environment asked(std::string(name(isa.isa)).c_str());
    if (isa.available) {
      EXPECT_EQ(choose(Isa::automatic).kernels->isa, isa.isa);
    } else {
      EXPECT_THROW(static_cast<void>(choose(Isa::automatic)), Error);
    }
  }
  const Environment nonsense("sse5");
  try {
    static_cast<void>(choose(Isa::automatic));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("DOSA_ISA"), std::string::npos);
  }
}

TEST(Dispatch, AnEmptyVariableAsksForNothing) {
  const Environment empty("");
  const Choice choice = choose(Isa::automatic);
  EXPECT_EQ(choice.why.find("DOSA_ISA"), std::string::npos);
}

TEST(Dispatch, TheProcessorHasAName) { EXPECT_FALSE(processor_name().empty()); }

}  // namespace
}  // namespace dosa::cpu
