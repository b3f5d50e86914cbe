// What a tile's rows need of the pack they share, and whether they share a screen.
#include "cpu/row_work.hpp"

#include <gtest/gtest.h>

#include <array>

namespace dosa::cpu {
namespace {

TEST(PackFor, CarriesTheMeanWhereACertifiedFormAsksForItAndNowhereElse) {
  const float mean = 1;
  TileContext tile{};
  tile.pack = {ScoreModel::sm90, &mean};
  std::array<RowWork, 3> works{};
  for (const Screen others : {Screen::none, Screen::dense, Screen::model}) {
    for (RowWork& work : works) work.screen = others;
    works[1].dosa.has_alternative = true;  // of a form that the row does not use
    EXPECT_EQ(pack_for(tile, works).mean, nullptr);
    works[1].screen = Screen::dosa;
    EXPECT_EQ(pack_for(tile, works).mean, &mean);
    EXPECT_EQ(pack_for(tile, works).model, ScoreModel::sm90);
    EXPECT_EQ(pack_for(tile, {&works[2], 1}).mean, nullptr);
    works[1].dosa.has_alternative = false;
    EXPECT_EQ(pack_for(tile, works).mean, nullptr);
    EXPECT_EQ(pack_for(tile, works).model, ScoreModel::sm90);
  }
}

TEST(PreferOneScreen, AFewCertifiedRowsGoDenseWithTheOthers) {
  for (std::size_t certified = 0; certified <= 8; ++certified) {
    std::array<RowWork, 10> works{};
    for (std::size_t r = 0; r < 8; ++r) {
      works[r].screen = r < certified ? Screen::dosa : Screen::dense;
      works[r].report.path = r < certified ? Path::dosa : Path::dense;
      works[r].report.retained_heads = r < certified ? 5 : 32;
      works[r].report.aggregates = r < certified ? 1 : 0;
    }
    works[8].screen = Screen::none;
    works[9].screen = Screen::model;
    prefer_one_screen(works, 32);
    const std::size_t left = certified >= 6 ? certified : 0;  // three quarters of eight
    for (std::size_t r = 0; r < 8; ++r) {
      EXPECT_EQ(works[r].screen, r < left ? Screen::dosa : Screen::dense) << certified << ' ' << r;
      EXPECT_EQ(works[r].report.path, r < left ? Path::dosa : Path::dense);
      EXPECT_EQ(works[r].report.retained_heads, r < left ? 5 : 32);
      EXPECT_EQ(works[r].report.aggregates, r < left ? 1 : 0);
    }
    EXPECT_EQ(works[8].screen, Screen::none);
    EXPECT_EQ(works[9].screen, Screen::model);
  }
}

}  // namespace
}  // namespace dosa::cpu
